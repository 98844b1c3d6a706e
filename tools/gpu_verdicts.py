"""What the steps of tools/gpu_check found: counts out of reports, and one verdict of all parts of a step."""

import json
import re
import signal
import sys
import xml.etree.ElementTree as ElementTree
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Step:
    """The outcome of one step. `verdict` is one line: counts, or why it failed."""

    name: str
    ok: bool
    verdict: str
    counts: dict[str, int] = field(default_factory=dict)
    seconds: float = 0.0

    def line(self) -> str:
        return f"{'pass' if self.ok else 'FAIL'}  {self.name:<10} {self.seconds:6.0f} s  {self.verdict}"


@dataclass(frozen=True)
class Finished:
    """A command that ended: its exit status (-9 when it was stopped at its limit) and everything it wrote."""

    status: int
    output: str

    @property
    def how(self) -> str:
        return "stopped at its time limit" if self.status == -signal.SIGKILL else f"exit status {self.status}"


def gtest_counts(report: dict[str, Any]) -> dict[str, int]:
    """Counts tests in GoogleTest's JSON report: run (skipped ones too), failed, skipped."""
    tests = [test for suite in report["testsuites"] for test in suite["testsuite"]]
    done = [test for test in tests if test["status"] == "RUN"]
    failed = [test for test in done if test.get("failures")]
    skipped = [test for test in done if test["result"] == "SKIPPED"]
    return {"run": len(done), "failed": len(failed), "skipped": len(skipped)}


def tests_verdict(name: str, counts: dict[str, int], done: Finished) -> Step:
    """Returns the step, which passes when some tests ran, none was skipped and none failed."""
    verdict = (
        f"{counts['run'] - counts['failed'] - counts['skipped']} passed, "
        f"{counts['failed']} failed, skipped = {counts['skipped']}"
    )
    ok = done.status == 0 and counts["run"] > 0 and counts["failed"] == counts["skipped"] == 0
    if counts["run"] == 0:
        verdict = f"no test ran ({done.how})"
    elif done.status != 0:
        verdict += f" ({done.how})"
    return Step(name, ok, verdict, counts)


def gtest_report(path: Path) -> dict[str, int] | None:
    return gtest_counts(json.loads(path.read_text())) if path.is_file() else None


def cpp_verdict(parts: list[tuple[Finished, dict[str, int] | None]]) -> Step:
    """Returns the step of all parts, each with its counts or None where it wrote no report."""
    lost = next((done for done, counts in parts if counts is None), None)
    if lost is not None:
        return Step("cpp", False, f"no report: {lost.how}")
    known = [counts for _, counts in parts if counts is not None]
    total = {name: sum(counts[name] for counts in known) for name in ("run", "failed", "skipped")}
    worst = next((done for done, _ in parts if done.status != 0), parts[0][0])
    return tests_verdict("cpp", total, worst)


def junit_counts(xml: str) -> tuple[dict[str, int], list[str]]:
    """Counts tests in pytest's JUnit report: run (skipped ones too), failed, skipped; and tells why tests
    were skipped."""
    cases = list(ElementTree.fromstring(xml).iter("testcase"))
    failed = [case for case in cases if case.find("failure") is not None or case.find("error") is not None]
    skips = [(case, case.find("skipped")) for case in cases]
    reasons = [f"{case.get('name')}: {skip.get('message')}" for case, skip in skips if skip is not None]
    return {"run": len(cases), "failed": len(failed), "skipped": len(reasons)}, reasons


def python_verdict(parts: list[tuple[Finished, str | None]]) -> Step:
    """Returns the step of all parts, each with its JUnit report or None where it wrote none."""
    lost = next((done for done, xml in parts if xml is None), None)
    if lost is not None:
        return Step("python", False, f"no report: {lost.how}; pytest must be installed for {sys.executable}")
    known = [junit_counts(xml) for _, xml in parts if xml is not None]
    total = {name: sum(counts[name] for counts, _ in known) for name in ("run", "failed", "skipped")}
    # A part whose files have no GPU test collects none, which pytest calls status 5.
    worst = next((done for done, _ in parts if done.status not in (0, 5)), Finished(0, ""))
    step = tests_verdict("python", total, worst)
    return replace(
        step, verdict="; ".join([step.verdict, *(why for _, reasons in known for why in reasons)][:4])
    )


def sanitizer_errors(output: str) -> int | None:
    """Returns the count in a sanitizer's last summary line, warnings of a race included; None when it wrote
    none."""
    summaries = re.findall(r"(?:ERROR|RACECHECK) SUMMARY: (\d+) (?:error|hazard)", output)
    return int(summaries[-1]) if summaries else None


def sanitizer_verdict(tool: str, parts: list[Finished]) -> Step:
    """Returns the step, which is clean when each part's summary says 0, its tests passed, and tests ran."""
    errors = [sanitizer_errors(part.output) for part in parts]
    passed = [re.search(r"\[  PASSED  \] (\d+) test", part.output) for part in parts]
    ran = sum(int(found[1]) for found in passed if found)
    known = [count for count in errors if count is not None]
    counts = {"run": ran} | ({"errors": sum(known)} if known else {})
    failed = next((part for part in parts if part.status != 0), None)
    if failed is None and all(passed) and errors == [0] * len(parts) and ran > 0:
        return Step(tool, True, f"clean, {ran} tests", counts)
    found = f"{sum(known)} errors" if len(known) == len(parts) else "no summary"
    return Step(tool, False, f"{found}, {ran} tests passed ({(failed or parts[0]).how})", counts)


def sweep_verdict(done: Finished) -> Step:
    """Returns the step, which passes when problems were measured and all results are right, slower than dense
    or not."""
    found = re.search(r"^slower than dense .*: (\d+) .* of (\d+) problems.*$", done.output, re.MULTILINE)
    counts = {"slower": int(found[1]), "problems": int(found[2])} if found else {}
    verdict = (found[0] if found else "nothing was measured") + ("" if done.status == 0 else f" ({done.how})")
    return Step("sweep", done.status == 0 and found is not None, verdict, counts)
