"""bench models on tiny models of the same classes, on the CPU: the course, what its record says, and what is
refused."""

import dataclasses
import importlib
import json
import sys
import types
from pathlib import Path

import pytest
import torch
from rich.console import Console

from sparseloom import Error, cli
from sparseloom.nn import BlockSparseLinear
from sparseloom_bench.bench.models import run, train, ways, zoo

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "tools"))
model_tables = importlib.import_module("model_tables")

TINY = {
    "vit_base_patch16_224": {
        "img_size": 32,
        "patch_size": 8,
        "embed_dim": 128,
        "depth": 1,
        "num_heads": 2,
        "num_classes": 10,
    },
    "bert_base": {
        "hidden_size": 128,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "intermediate_size": 256,
        "vocab_size": 100,
        "tokens": 16,
    },
    "resnet50": {"img_size": 32, "layers": [1, 1, 1, 1], "width_per_group": 32, "num_classes": 10},
    "gpt2": {"n_embd": 128, "n_layer": 1, "n_head": 2, "vocab_size": 100, "tokens": 16},
}
TINY |= {
    f"{name}_blocks": {
        "hidden_size": 128,
        "intermediate_size": 256,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "num_hidden_layers": 1,
        "vocab_size": 100,
        "tokens": 16,
    }
    for name in ("llama", "qwen")
}
CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def short(monkeypatch):
    """Few rounds, one thread: tiny products on two busy cores wait for each other longer than they take."""
    for name, value in (("ROUND", 1), ("ROUNDS", 2), ("WARM_UP", 1)):
        monkeypatch.setattr(train, name, value)
    for name, value in (("CALLS", 1), ("ROUNDS", 1), ("WARM_UP", 1)):
        monkeypatch.setattr(ways, name, value)
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
    torch._dynamo.reset()


def tiny(name):
    (spec,) = [spec for spec in zoo.SPECS if spec.name == name]
    return dataclasses.replace(spec, sizes=TINY[name], batches=(1, 2), classes=10)


@pytest.mark.parametrize(
    ("name", "layers"),
    [
        pytest.param("vit_base_patch16_224", 4, marks=pytest.mark.package("timm")),
        pytest.param("bert_base", 6, marks=pytest.mark.package("transformers")),
    ],
)
def test_the_course_of_a_model(name, layers, capsys):
    record = json.loads(json.dumps(train.measure(tiny(name), CPU, 0.0, backend="eager")))
    assert (
        record["model"] == name
        and record["layers"] == layers
        and record["parameters"][1] < record["parameters"][0]
    )
    assert len(record["losses"]) == len(record["dense_losses"]) == train.STEPS == 20
    assert (
        max(record["losses"][-3:]) < min(record["losses"][:3])
        and max(record["dense_losses"][-3:]) < record["dense_losses"][0]
    )
    assert record["reloaded_equal"] and record["fresh_differs"]
    # whole: a graph break would leave torch.compile little to do
    assert record["graphs"] == {"sparse": 1, "dense": 1}
    assert (
        min(
            record["steps_per_s"]["sparse"]["median"],
            record["steps_per_s"]["dense"]["median"],
            record["speedup"],
        )
        > 0
    )
    graphed = record["graphed"]
    assert (
        min(graphed["steps_per_s"]["sparse"]["median"], graphed["steps_per_s"]["dense"]["median"])
        > 0
        == graphed["skips"]
    )
    assert record["training_bytes"] == {"sparse": None, "dense": None} and record["file_bytes"] > 0
    report = record["report"]
    assert sum(layer["kind"] == "BlockSparseLinear" for layer in report["layers"]) == layers
    assert {layer["dtype"] for layer in report["layers"] if layer["kernels"]} == {"bfloat16"}
    assert [batch["batch"] for batch in report["batches"]] == [1, 2] and report["model"]["speedups"][
        "forward"
    ] > 0
    assert run.failed([record]) == []
    out = capsys.readouterr().out
    assert (
        f"loss {record['losses'][0]:.3f}" in out and "became block-sparse" in out and "reloaded, equal" in out
    )
    console = Console(width=180, record=True)
    console.print(run.table([record]))
    assert name in console.export_text()
    about = {"gpu": {"name": "a GPU"}, "device": "where", "commit": "0123", "date": "2026-01-01"}
    page = model_tables.page([about | {"records": [record]}])
    assert (
        f"{record['speedup']:.2f}x" in page
        and f"= {record['graphed']['speedup']:.2f}x" in page
        and "where; commit 0123, 2026-01-01;" in page
        and "a GPU" in page
    )


@pytest.mark.package("transformers")
def test_the_full_sizes_are_the_published_ones_and_the_patterns_take_the_encoder():
    """On meta: the packages' own definitions, unchanged."""
    bert = zoo.SPECS[1]
    with torch.device("meta"):
        model = bert.make(0, torch.device("meta"))
    assert sum(p.numel() for p in model.bert.parameters()) == 109_482_240  # BERT-base
    random = {
        regex: dataclasses.replace(each, select="random", seed=0) for regex, each in bert.patterns.items()
    }
    result = train.sparsify_(model, random)
    assert len(result.changed) == 12 * 6 and {skip.name for skip in result.skipped} == {
        "bert.pooler.dense",
        "classifier",
    }
    assert sum(isinstance(module, BlockSparseLinear) for module in model.modules()) == 72


@pytest.mark.package("transformers")
@pytest.mark.parametrize(("name", "layers"), [("gpt2", 4), ("llama_blocks", 7), ("qwen_blocks", 7)])
def test_decoders_become_sparse_and_their_smallest_call_is_one_token(name, layers):
    spec = tiny(name)
    model, x = spec.make(0, CPU), spec.single(CPU)
    assert tuple(x.shape) == (1, 1) and len(train.sparsify_(model, spec.patterns).changed) == layers
    record = ways.in_each_way(spec, CPU, ("eager",), backend="eager")
    assert len(record["ways"]) == 3 and all(each["speedup"] > 0 for each in record["ways"].values())


@pytest.mark.package("transformers")
def test_a_model_in_each_way(monkeypatch):
    some = ("eager", "compiled", "graph")  # of which the last one needs a GPU
    record = json.loads(json.dumps(ways.in_each_way(tiny("bert_base"), CPU, some, backend="eager")))
    kinds = ("inference", "inference, smallest", "step")
    assert list(record["ways"]) == [f"{kind}, {way}" for kind in kinds for way in some[:2]]
    assert all(min(each["sparse"]["median"], each["speedup"]) > 0 for each in record["ways"].values())
    about = {"gpu": {"name": "a GPU"}, "device": "where", "commit": "0123", "date": "2026-01-01"}
    page = model_tables.page([about | {"records": [record]}])
    assert (
        "| bert_base | inference, smallest |" in page
        and f"= {record['ways']['step, eager']['speedup']:.2f}x" in page
    )
    assert run.failed([record]) == []

    def refuses(*arguments):
        raise RuntimeError("no kernel")

    monkeypatch.setattr(ways, "step", refuses)
    broken = ways.in_each_way(tiny("bert_base"), CPU, ("eager",), backend="eager")
    assert run.failed([broken]) == ["bert_base, step, eager: no kernel"]
    console = Console(width=120, record=True)
    console.print(run.table([broken]))
    assert "no kernel" in console.export_text()
    with pytest.raises(Error, match="a way of eager, compiled"):
        ways.in_each_way(tiny("bert_base"), CPU, ("quickly",))


def test_masters_of_2_4_train_in_ways_alone():
    full = zoo.select(["feed_forward"], in_ways=True)[0]
    spec = dataclasses.replace(full, sizes={"features": 16, "hidden": 64}, batches=(4,), classes=16)
    record = ways.in_each_way(spec, CPU, ("eager",), backend="eager")
    assert list(record["ways"]) == ["step, eager"] and record["ways"]["step, eager"]["speedup"] > 0
    assert record["patterns"] == {"[02]": {"layout": "semi24"}} and run.failed([record]) == []
    with pytest.raises(Error, match="or with --way of semi24_vit_large"):
        zoo.select(["feed_forward"])


@pytest.mark.package("timm")
@pytest.mark.parametrize("side", [16, 32, 64])
def test_the_table_of_superblock_is_of_inference_alone(side):
    (full,) = zoo.select([f"vit_b16_mlp90_block{side}"], in_ways=True)
    assert full.data(CPU)[0].shape == (256, 3, 224, 224) and tuple(full.single(CPU).shape) == (1, 3, 224, 224)
    sizes = TINY["vit_base_patch16_224"] | {"embed_dim": 320}  # 5 blocks of 64
    spec = dataclasses.replace(full, sizes=sizes, batches=(2,), classes=10)
    record = ways.in_each_way(spec, CPU, backend="eager")  # graphs need a GPU
    kinds = ("inference in fp32", "inference")
    assert list(record["ways"]) == [f"{kind}, {way}" for kind in kinds for way in ("eager", "compiled")]
    assert run.failed([record]) == [] and all(each["speedup"] > 0 for each in record["ways"].values())
    (pattern,) = record["patterns"].values()
    assert pattern == {"block": [side, side], "density": 0.1}


def test_only_layers_that_gain_become_sparse_where_the_model_asks(monkeypatch):
    def build(torch, sizes):
        nn = torch.nn
        convs = [nn.Conv2d(64, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU(), nn.Conv2d(64, 64, 1)]
        return nn.Sequential(*convs, nn.AdaptiveAvgPool2d(1), nn.Flatten())

    def images(sizes, generator):
        return torch.randn(sizes["batch"], 64, 8, 8, generator=generator)

    advised = []

    layer = types.SimpleNamespace(names=["0"], best=lambda density: density == 0.25)

    def advise(model, x, **asked):
        advised.append((x.dtype, tuple(x.shape), asked["blocks"], asked["training"]))
        return types.SimpleNamespace(layers=[layer])

    monkeypatch.setattr(ways, "advise", advise)
    patterns = {"[03]": zoo.BlockSparse(block=32, density=0.25, scope="row")}
    spec = zoo.Spec("tiny", "torch", build, images, 64, patterns, (2,), chosen=True)
    record = ways.in_each_way(spec, CPU, ("eager",), backend="eager")
    assert record["layers"] == {"inference": 1, "inference, smallest": 1, "step": 1}
    assert advised == [
        (torch.bfloat16, (2, 64, 8, 8), [(32, 32)], False),
        (torch.bfloat16, (1, 64, 8, 8), [(32, 32)], False),
        (torch.bfloat16, (2, 64, 8, 8), [(32, 32)], True),
    ]
    folded = ways._model(spec, spec.make(0, CPU), "inference", {"0": patterns["[03]"]})
    kinds = {type(module).__name__ for module in folded.modules()}
    assert "BatchNorm2d" not in kinds and "BlockSparseConv2d" in kinds
    trained = ways._model(spec, spec.make(0, CPU), "step", {})
    assert "BatchNorm2d" in {type(module).__name__ for module in trained.modules()}


@pytest.mark.package("torchvision")
def test_the_convolutions_of_a_resnet_become_sparse_and_train():
    """Without torch.compile, which takes a minute for so many layers."""
    full = zoo.SPECS[2]
    with torch.device("meta"):
        model = full.make(0, torch.device("meta"))
    assert sum(p.numel() for p in model.parameters()) == 25_557_032  # ResNet-50
    random = {
        regex: dataclasses.replace(each, select="random", scope="layer", seed=0)
        for regex, each in full.patterns.items()
    }
    assert len(train.sparsify_(model, random).changed) == 52
    spec = tiny("resnet50")
    model, (x, target) = spec.make(0, CPU), spec.data(CPU)
    assert x.is_contiguous(memory_format=torch.channels_last)
    patched = train.sparsify_(model, spec.patterns)
    assert len(patched.changed) == 15 and {change.kind for change in patched.changed} == {"Conv2d"}
    optimizer = torch.optim.AdamW(model.parameters(), train.LEARNING_RATE)
    losses = []
    for _ in range(3):
        loss = torch.nn.functional.cross_entropy(model(x), target)
        optimizer.zero_grad(), loss.backward(), optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0]
    assert train.reloaded(spec, model, x)[1:] == (True, True)


def test_what_does_not_hold_is_said():
    good = {
        "model": "m",
        "losses": [2.0, 1.0],
        "reloaded_equal": True,
        "fresh_differs": True,
        "graphed": {"skips": 0},
    }
    assert run.failed([good]) == []
    wrong = [
        good | {"losses": [1.0, 1.0]},
        good | {"losses": [1.0, float("nan")]},
        good | {"reloaded_equal": False},
        good | {"fresh_differs": False},
        good | {"graphed": {"skips": 2}},
        {"model": "m", "error": "OutOfMemoryError: full"},
    ]
    words = [run.failed([record]) for record in wrong]
    assert all(len(found) == 1 for found in words) and "full" in words[-1][0] and "reloaded" in words[2][0]
    assert "2 compiled parts ran without a CUDA graph" in words[4][0]


@pytest.mark.package("transformers")
def test_a_reload_that_changes_a_bit_is_noticed(monkeypatch):
    real = train.load

    def damaged(path, model):
        real(path, model)
        with torch.no_grad():
            model.bert.encoder.layer[0].output.dense.values[0, 0, 0] += 1

    monkeypatch.setattr(train, "load", damaged)
    spec = tiny("bert_base")
    model = spec.make(0, CPU)
    train.sparsify_(model, spec.patterns)
    assert train.reloaded(spec, model, spec.data(CPU)[0])[1:] == (False, True)


def test_a_missing_package_and_a_missing_gpu_are_named(monkeypatch, capsys):
    spec = dataclasses.replace(zoo.SPECS[0], package="no_such_package")
    with pytest.raises(Error, match="the package no_such_package for vit_base_patch16_224"):
        spec.require()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)

    def bench(*arguments):
        with pytest.raises(SystemExit) as end:
            cli.main(["bench", *arguments])
        return end.value.code

    assert bench("models") == 2 and "a GPU for the suite models" in capsys.readouterr().err
    assert (
        bench("models", "--only", "vgg") == 2
        and "a model of vit_base_patch16_224, bert_base, resnet50" in capsys.readouterr().err
    )


def test_the_models_are_listed(capsys):
    try:
        status = cli.main(["bench", "models", "--list"])
    except SystemExit as end:
        status = end.code
    assert not status and capsys.readouterr().out.split() == [
        "vit_base_patch16_224",
        "bert_base",
        "resnet50",
        "gpt2",
        "llama_blocks",
        "qwen_blocks",
    ]


def test_one_model_that_fails_leaves_the_other_its_record(monkeypatch, capsys):
    monkeypatch.setattr(run, "require_gpu", lambda suite: CPU)
    monkeypatch.setattr(run, "describe", lambda *a: {"name": "NVIDIA H200"})
    monkeypatch.setattr(run, "Monitor", lambda *a: None)
    monkeypatch.setattr(zoo.Spec, "require", lambda spec: None)

    def measure(spec, device, seconds, say):
        if spec.package == "timm":
            raise RuntimeError("CUDA error: misaligned address\nand more")
        return {"op": "model", "model": spec.name}

    monkeypatch.setattr(run, "measure", measure)
    head, records = run.run(list(zoo.SPECS), 0.0)
    assert head["device"] == "h200" and head["mode"] == "training" and head["suite"] == "models"
    assert records[0]["error"] == "RuntimeError: CUDA error: misaligned address" and "error" not in records[1]
    assert "misaligned" in capsys.readouterr().err
