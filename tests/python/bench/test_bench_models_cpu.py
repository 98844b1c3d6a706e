"""bench models --device cpu in its small form: columns, notes, record and table, without other runtimes."""

import json
from types import SimpleNamespace

import pytest
import torch

from sparseloom import BlockSparse, cli
from sparseloom_bench.bench.models import cpu_zoo, on_cpu, runtimes


@pytest.fixture(autouse=True)
def alone(monkeypatch):
    """One thread, and none of the packages that only some machines have."""
    monkeypatch.setattr(runtimes, "installed", lambda *packages: False)
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def run(*arguments):
    with pytest.raises(SystemExit) as status:
        cli.main(["bench", "models", *arguments])
    return status.value.code or 0


def test_the_decoder_runs_in_every_column_that_is_installed(tmp_path, capsys):
    assert run("--device", "cpu", "--smoke", "--only", "decoder", "--results", str(tmp_path)) == 0
    (path,) = tmp_path.glob("*/models.json")
    data = json.loads(path.read_text())
    (record,) = data["records"]
    assert (data["device"], data["smoke"], record["model"]) == ("cpu", True, "decoder_100m_token")
    columns = record["columns"]
    kinds = ("bf16", "int8 in bf16", "export bf16", "export int8 in bf16")
    bitmaps = [f"ours bitmap {density} {kind}" for density in (0.5, 0.3) for kind in kinds]
    assert list(columns) == [*on_cpu.COLUMNS, *bitmaps, on_cpu.DENSE_INT8]
    here = [name for name in bitmaps if "export" not in name]
    assert all(columns[name]["ms"]["median"] > 0 for name in here)  # int8 by portable loops at least
    assert columns["torch eager"]["speedup"]["median"] == 1.0 and columns["torch eager"]["cosine"] == 1.0
    for name in ("ours fp32", "ours bf16"):
        assert columns[name]["ms"]["median"] > 0 and -1 <= columns[name]["cosine"] < 1
        assert columns[name]["of_own_fp32"] > 0.999  # the same weights, whatever was pruned
    assert "ms" in columns["ours int8"] or "needs" in columns["ours int8"]["note"]  # AVX2 has no int8 kernel
    assert columns["openvino int8"] == columns["onnxruntime fp32"] == {"note": "not installed"}
    for name in ("ours compile bf16", "ours export bf16", on_cpu.DENSE_INT8, "ours as advised"):
        assert columns[name] == {"note": "not in --smoke"}
    assert "not installed" in capsys.readouterr().out


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("minilm_1x20", marks=pytest.mark.package("transformers")),
        pytest.param("vit_small_8", marks=pytest.mark.package("timm")),
        pytest.param("resnet50_4", marks=pytest.mark.package("torchvision")),
    ],
)
def test_the_models_of_other_packages_run(name):
    (spec,) = [spec for spec in cpu_zoo.SPECS if spec.name == name]
    record = on_cpu.measured(spec, True, 0.0, lambda words: None)
    assert record["columns"]["ours fp32"]["ms"]["median"] > 0 and not record["trained"]
    assert not on_cpu.failed([record])


def test_a_runtime_that_computes_something_else_is_told_and_one_that_fails_has_its_reason(
    monkeypatch, tmp_path
):
    def raises(inputs):
        raise ValueError("no such operator")

    monkeypatch.setattr(runtimes, "installed", lambda *packages: "openvino" not in packages)
    wrong = {"fp32": lambda: lambda inputs: -torch.ones(1, 1, 100), "int8": lambda: raises}
    monkeypatch.setattr(runtimes, "by_onnxruntime", lambda path, names: wrong)
    (spec,) = cpu_zoo.select(["decoder"])
    monkeypatch.setattr(cpu_zoo.Decoder, "forward", lambda self, *x: (torch.ones(1, 1, 100), None, None))
    record = on_cpu.measured(spec, True, 0.0, lambda words: None)
    assert record["columns"]["onnxruntime int8"] == {"note": "ValueError: no such operator"}
    assert on_cpu.failed([record]) == ["decoder_100m_token, onnxruntime fp32: cosine -1.0 with eager torch"]


def test_a_limit_of_time_leaves_the_columns_that_cost_most(tmp_path):
    (spec,) = cpu_zoo.select(["decoder"])
    with (tmp_path / "turn").open("w") as turn:
        columns = on_cpu.measured(spec, True, 0.0, lambda words: None, 1e-9, turn)["columns"]
    assert columns["torch eager"]["ms"]["median"] > 0
    assert columns["ours bf16"] == {"note": "not within 1e-09 s"}


@pytest.mark.parametrize("gains", [False, True])
def test_what_advise_recommends_stands_beside_its_prediction(gains, monkeypatch):
    whole = SimpleNamespace(predicted_us=1500.0, disturbed=True)
    best = {".*": BlockSparse(8, 0.5)} if gains else {}
    advice = SimpleNamespace(model=whole, best=lambda: best)
    monkeypatch.setattr(on_cpu, "advise", lambda model, inputs, densities: advice)
    model, ready = torch.nn.Sequential(torch.nn.Linear(16, 16)), {}
    column = on_cpu._advised(model, {"input": torch.ones(2, 16)}, ready)
    if gains:
        assert column == {"predicted_ms": 1.5, "disturbed": True} and list(ready) == ["ours as advised"]
        assert ready["ours as advised"]().shape == (2, 16) and isinstance(model[0], torch.nn.Linear)
    else:
        assert column == {"note": "advise recommends nothing"} and not ready


def test_unknown_names_and_devices_are_refused(capsys):
    assert run("--device", "cpu", "--only", "nothing") == 2
    assert "a model of minilm_32x64" in capsys.readouterr().err
    assert run("--device", "tpu") == 2
    assert run("--device", "cpu", "--list") == 0
    assert "resnet50_4" in capsys.readouterr().out


# torch's own, at inductor's import
@pytest.mark.filterwarnings("ignore:.*torch.jit.script_method:DeprecationWarning")
def test_a_column_by_export_computes_what_its_layers_do(tmp_path):
    (spec,) = cpu_zoo.select(["decoder"])
    model, _ = spec.make(spec.smoke)
    inputs = spec.inputs(spec.smoke, torch.Generator().manual_seed(0))
    with torch.no_grad():
        makers = on_cpu._makers(spec, model.eval(), inputs, tmp_path, compiled=True)
        ahead, plain = (makers[f"ours bitmap 0.5 {way}int8 in bf16"]() for way in ("export ", ""))
        torch.testing.assert_close(ahead(), plain(), atol=0.02, rtol=0.02)
