"""The steps of tools/gpu_check: how outcomes are read, without a GPU."""

from __future__ import annotations

import importlib
import sys
import time
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "tools"))
gpu_steps = importlib.import_module("gpu_steps")
verdicts = importlib.import_module("gpu_verdicts")


def test_counts_of_both_test_reports() -> None:
    tests = [
        {"status": "RUN", "result": "COMPLETED"},
        {"status": "RUN", "result": "COMPLETED", "failures": [{}]},
        {"status": "RUN", "result": "SKIPPED"},
        {"status": "NOTRUN", "result": "SUPPRESSED"},
    ]
    assert verdicts.gtest_counts({"testsuites": [{"testsuite": tests}]}) == {
        "run": 3,
        "failed": 1,
        "skipped": 1,
    }
    xml = (
        '<testsuites><testsuite><testcase name="a"/><testcase name="b"><failure message="m"/></testcase>'
        '<testcase name="c"><error/></testcase><testcase name="d"><skipped '
        'message="no GPU"/></testcase></testsuite></testsuites>'
    )
    assert verdicts.junit_counts(xml) == ({"run": 4, "failed": 2, "skipped": 1}, ["d: no GPU"])


@pytest.mark.parametrize(
    ("counts", "status", "ok"),
    [
        ((3, 0, 0), 0, True),
        ((3, 0, 1), 0, False),
        ((3, 1, 0), 1, False),
        ((0, 0, 0), 5, False),
        ((3, 0, 0), -11, False),
    ],
)
def test_a_step_of_tests_needs_some_and_no_skips(counts: tuple[int, int, int], status: int, ok: bool) -> None:
    step = verdicts.tests_verdict(
        "x", dict(zip(("run", "failed", "skipped"), counts, strict=True)), verdicts.Finished(status, "")
    )
    assert step.ok is ok


def test_parts_of_the_python_tests_count_together() -> None:
    good = (
        verdicts.Finished(0, ""),
        '<testsuites><testsuite><testcase name="a"/></testsuite></testsuites>',
    )
    none = verdicts.Finished(5, ""), "<testsuites><testsuite/></testsuites>"
    step = verdicts.python_verdict([good, none, good])
    assert step.ok and step.counts["run"] == 2
    assert not verdicts.python_verdict([none, none]).ok
    assert not verdicts.python_verdict([good, (verdicts.Finished(-9, ""), None)]).ok
    assert not verdicts.python_verdict([good, (verdicts.Finished(1, ""), good[1])]).ok


def test_parts_of_the_cpp_tests_count_together_and_each_must_end() -> None:
    good = verdicts.Finished(0, ""), {"run": 3, "failed": 0, "skipped": 0}
    step = verdicts.cpp_verdict([good, good])
    assert step.ok and step.counts["run"] == 6
    for bad in (
        (verdicts.Finished(1, ""), {"run": 3, "failed": 1, "skipped": 0}),
        (verdicts.Finished(0, ""), {"run": 3, "failed": 0, "skipped": 1}),
        (verdicts.Finished(-9, ""), None),
    ):
        assert not verdicts.cpp_verdict([good, bad]).ok


@pytest.mark.parametrize(
    ("output", "status", "ok", "word"),
    [
        (
            "slower than dense (by 3 % and .5 us): 34 (11.3 %) of 300 problems, below .9: 9 (3.0 %)\n",
            0,
            True,
            "34 (11.3 %) of 300",
        ),
        (
            "slower than dense (by 3 % and .5 us): 0 (0.0 %) of 9 problems, below .9: 0 (0.0 %)\n",
            1,
            False,
            "exit status 1",
        ),
        ("failed: 300\n", 0, False, "nothing was measured"),
    ],
)
def test_a_sweep_passes_when_its_results_are_right(output: str, status: int, ok: bool, word: str) -> None:
    step = verdicts.sweep_verdict(verdicts.Finished(status, output))
    assert step.ok is ok and word in step.line()
    assert not step.counts or step.counts["problems"] in (9, 300)
    assert "sweep" in gpu_steps.STEPS and gpu_steps.BY_NAME == ("sweep",)


@pytest.mark.parametrize(
    ("output", "status", "ok", "word"),
    [
        ("[  PASSED  ] 12 tests.\n========= ERROR SUMMARY: 0 errors\n", 0, True, "clean, 12 tests"),
        (
            "[  PASSED  ] 12 tests.\n========= RACECHECK SUMMARY: 0 "
            "hazards displayed (0 errors, 0 warnings)\n",
            0,
            True,
            "clean",
        ),
        (
            "[  PASSED  ] 12 tests.\n========= RACECHECK SUMMARY: 2 "
            "hazards displayed (0 errors, 2 warnings)\n",
            0,
            False,
            "2 errors",
        ),
        ("[  PASSED  ] 1 test.\n========= ERROR SUMMARY: 1 error\n", 86, False, "1 errors, 1 tests passed"),
        ("[  PASSED  ] 0 tests.\n========= ERROR SUMMARY: 0 errors\n", 0, False, "0 tests"),
        ("[  PASSED  ] 3 tests.\n", -9, False, "no summary, 3 tests passed (stopped at its time limit)"),
    ],
)
def test_a_sanitizer_is_clean_only_when_tests_ran(output: str, status: int, ok: bool, word: str) -> None:
    step = verdicts.sanitizer_verdict("memcheck", [verdicts.Finished(status, output)])
    assert step.ok is ok and word in step.verdict and word in step.line()
    assert verdicts.sanitizer_verdict("memcheck", [clean_part(), verdicts.Finished(status, output)]).ok is (
        ok or "0 tests" in word
    )


def clean_part() -> verdicts.Finished:
    return verdicts.Finished(0, "[  PASSED  ] 12 tests.\n========= ERROR SUMMARY: 0 errors\n")


def test_the_parts_of_a_sanitizer_are_added_up() -> None:
    step = verdicts.sanitizer_verdict("racecheck", [clean_part(), clean_part()])
    assert step.ok and step.counts == {"run": 24, "errors": 0}
    raced = verdicts.Finished(
        86, "[  PASSED  ] 3 tests.\n========= RACECHECK SUMMARY: 2 hazards displayed (0 errors, 2 warnings)\n"
    )
    step = verdicts.sanitizer_verdict("racecheck", [clean_part(), raced, clean_part()])
    assert not step.ok and step.counts == {"run": 27, "errors": 2} and "exit status 86" in step.verdict


def test_a_command_is_stopped_at_its_limit_with_what_it_started() -> None:
    start = time.monotonic()
    done = gpu_steps.run(["bash", "-c", "echo said; sleep 60 & sleep 60"], 1.0)
    assert (
        done.how == "stopped at its time limit" and done.output == "said\n" and time.monotonic() - start < 20
    )
    assert gpu_steps.run(["/no/such/program"], 1).status == 127
    find = "from importlib.util import find_spec\nfor name in ('sparseloom', 'sparseloom_bench'):"
    find += " print(find_spec(name).origin)"
    told = gpu_steps.run([sys.executable, "-c", find], 60).output
    assert all(f"{gpu_steps.ROOT / folder}/" in told for folder in ("python", "benchmarks"))
    with pytest.raises(SystemExit):
        gpu_steps.main(["--steps", "cpp,nothing"])


@pytest.mark.parametrize(
    ("visible", "parts", "second"),
    [("0", 8, {}), ("2,5", 16, {"CUDA_VISIBLE_DEVICES": "5,2"}), ("", 8, {}), ("0,1,2,3", 32, None)],
)
def test_parts_take_turns_on_several_gpus(
    visible: str, parts: int, second: dict[str, str] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    monkeypatch.setattr(gpu_steps.os, "cpu_count", lambda: 64)
    gpu_steps.gpus.cache_clear()
    try:
        assert gpu_steps.parts_of(8) == parts
        assert gpu_steps.gpu_of(1) == ({"CUDA_VISIBLE_DEVICES": "1,2,3,0"} if second is None else second)
        assert gpu_steps.gpu_of(len(gpu_steps.gpus()) + 1) == gpu_steps.gpu_of(1)
    finally:
        gpu_steps.gpus.cache_clear()


def test_without_a_driver_there_is_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(gpu_steps, "run", lambda *_: verdicts.Finished(127, "no such file"))
    gpu_steps.gpus.cache_clear()
    try:
        assert gpu_steps.gpus() == [] and gpu_steps.gpu_of(3) == {}
    finally:
        gpu_steps.gpus.cache_clear()
