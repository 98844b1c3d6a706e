// Sorts and filters the table of all records. Without it the table is whole, and as it was written.
"use strict";
(() => {
  const table = document.querySelector("table.records");
  const form = document.querySelector(".records-filter");
  if (!table || !form) return;
  const body = table.tBodies[0], rows = [...body.rows], count = form.querySelector("output");
  const texts = rows.map((row) => row.textContent.toLowerCase());
  const more = document.querySelector(".records-more");
  const PAGE = 200;
  let shown = PAGE, order = rows.map((_, i) => i);
  form.hidden = false;

  const draw = () => {
    const words = form.words.value.toLowerCase().split(/\s+/).filter(Boolean);
    const chosen = [...form.querySelectorAll("select")].map((s) => [Number(s.dataset.column), s.value]);
    const found = order.filter((i) =>
      words.every((word) => texts[i].includes(word)) &&
      chosen.every(([column, value]) => !value || rows[i].cells[column].textContent === value));
    body.replaceChildren(...found.slice(0, shown).map((i) => rows[i]));
    count.textContent = `${found.length.toLocaleString("en")} of ${rows.length.toLocaleString("en")} records`;
    more.hidden = found.length <= shown;
  };
  const again = () => { shown = PAGE; draw(); };
  form.addEventListener("input", again);
  form.addEventListener("submit", (event) => event.preventDefault());
  more.addEventListener("click", () => { shown += 10 * PAGE; draw(); });
  table.tHead.addEventListener("click", (event) => {
    const head = event.target.closest("th");
    if (!head) return;
    const down = head.getAttribute("aria-sort") === "ascending";
    for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", down ? "descending" : "ascending");
    const column = head.cellIndex, sign = down ? -1 : 1;
    const keys = rows.map((row) => row.cells[column].textContent);
    const numeric = rows.some((row) => row.cells[column].className === "n");
    const value = (text) => (text === "" ? NaN : parseFloat(text.replace(/,/g, "")));
    order.sort((a, b) => {
      if (!numeric) return sign * keys[a].localeCompare(keys[b], "en", { numeric: true });
      const [x, y] = [value(keys[a]), value(keys[b])];
      return isNaN(x) || isNaN(y) ? isNaN(x) - isNaN(y) : sign * (x - y); // without a figure: last
    });
    draw();
  });
  draw();
})();
