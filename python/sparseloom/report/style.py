"""The style of the report's page. Ink and paper have a contrast of at least 4.5 (WCAG AA) in the light and in
the dark; a test measures it in a browser."""

STYLE = """
.sparseloom-report{--ink:#1b1f24;--soft:#515a64;--paper:#ffffff;--card:#f4f6f8;--line:#d0d7de;--dense:#7b8794;
--ours:#0a66b5;--good:#116329;--bad:#a4161a;color-scheme:light dark;color:var(--ink);background:var(--paper);
font:15px/1.5 system-ui,-apple-system,"Segoe UI",sans-serif;max-width:70rem;margin:0 auto;padding:1rem;
box-sizing:border-box;overflow-wrap:anywhere}
@media (prefers-color-scheme:dark){.sparseloom-report{--ink:#e6edf3;--soft:#a9b4bf;--paper:#12161b;
--card:#1c232b;--line:#38424d;--dense:#7d8894;--ours:#58a6ff;--good:#56d364;--bad:#ff8e87}}
.sparseloom-report *{box-sizing:border-box}
.sparseloom-report h1{font-size:1.45rem;line-height:1.3;margin:.2rem 0 .8rem;color:var(--ink)}
.sparseloom-report h2{font-size:1.1rem;margin:1.8rem 0 .5rem;color:var(--ink)}
.sparseloom-report p{margin:.4rem 0;max-width:48rem}
.sparseloom-report .soft,.sparseloom-report figcaption{color:var(--soft);font-size:.9rem}
.sparseloom-report .busy{border-left:4px solid var(--bad);padding:.4rem .8rem;background:var(--card)}
.sparseloom-report .way{margin:.6rem 0;padding:.7rem .9rem;background:var(--card);border-radius:6px}
.sparseloom-report .way b{margin-right:.6rem}
.sparseloom-report .pair{display:grid;grid-template-columns:4rem 1fr 6rem;gap:.2rem .6rem;align-items:center;
margin-top:.3rem;font-size:.9rem}
.sparseloom-report .bar{display:block;height:.8rem;border-radius:2px;background:var(--ours);min-width:2px}
.sparseloom-report .bar.of-dense{background:var(--dense)}
.sparseloom-report .num{text-align:right;font-variant-numeric:tabular-nums}
.sparseloom-report .good{color:var(--good);font-weight:600}
.sparseloom-report .bad{color:var(--bad);font-weight:600}
.sparseloom-report table{border-collapse:collapse;width:100%;font-size:.9rem;background:none;color:var(--ink)}
.sparseloom-report th,.sparseloom-report td{padding:.4rem .5rem;border-bottom:1px solid var(--line);
text-align:left;vertical-align:top;background:none;color:inherit;white-space:normal;overflow-wrap:break-word}
.sparseloom-report td:first-child{overflow-wrap:anywhere}
.sparseloom-report td:nth-child(3),.sparseloom-report td:nth-child(4){white-space:nowrap}
.sparseloom-report .again{display:none}
.sparseloom-report th{color:var(--soft);font-weight:600}
.sparseloom-report td.meter{min-width:6rem;padding-top:.75rem}
.sparseloom-report .track{display:block;padding:.2rem 0;background:linear-gradient(to right,transparent 66.3%,
var(--dense) 66.3%,var(--dense) 67%,transparent 67%)}
.sparseloom-report .figures{display:flex;flex-wrap:wrap;gap:1rem}
.sparseloom-report figure{margin:0;max-width:100%;width:160px}
.sparseloom-report figure svg{display:block;max-width:100%;height:auto;border:1px solid var(--line)}
.sparseloom-report pre{background:var(--card);color:var(--ink);padding:.7rem .9rem;border-radius:6px;
white-space:pre-wrap;overflow-wrap:anywhere;font-size:.85rem;margin:.5rem 0}
@media (prefers-color-scheme:dark){.sparseloom-report figure svg{filter:invert(1) hue-rotate(180deg)}}
@media (max-width:720px){
.sparseloom-report thead{display:none}
.sparseloom-report table,.sparseloom-report tbody{display:block}
.sparseloom-report tr{display:block;padding:.6rem .8rem;margin:.6rem 0;background:var(--card);
border-radius:6px}
.sparseloom-report td{display:grid;grid-template-columns:7rem 1fr;gap:.6rem;border:0;padding:.15rem 0;
text-align:left}
.sparseloom-report td:empty{display:none}
.sparseloom-report td::before{content:attr(data-label);color:var(--soft)}
.sparseloom-report td.meter{min-width:0}
.sparseloom-report td>*{min-width:0;overflow-wrap:anywhere}
.sparseloom-report .again{display:inline}
.sparseloom-report td.meter .track{align-self:center}
}
@media print{.sparseloom-report{max-width:none}}
"""
