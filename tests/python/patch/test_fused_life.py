"""What becomes of fused activations in all that is done with a model afterwards."""

import copy
import io
import pickle

import pytest
import torch
import torch.nn.functional as F
from fuse_forms import ALL, FUSED, HALF, Mlp, rows, seeded, sequential, tensor_of
from torch import nn

import sparseloom
from sparseloom import BlockSparse, densify_, pack_, quantize_, sparsify_
from sparseloom.nn import BlockSparseLinear
from sparseloom.nn.held.fused import Fused, fused_in, names_of_fused
from sparseloom.sparsify import methods


def test_fuse_false_leaves_the_model_alone():
    model = Mlp()
    act = model.act
    result = sparsify_(model, ALL, fuse=False)
    assert model.act is act and not any(c.activation or c.unfused for c in result.changed)
    with pytest.raises(sparseloom.Error, match="fuse"):
        sparsify_(Mlp(), ALL, fuse=1)
    patcher = sparseloom.BlockSparseModelPatcher()
    patcher.add_pattern("fc1", {"block": 8, "density": 0.5})
    other = Mlp()
    patcher.patch_model(other, fuse=False)
    assert isinstance(other.act, nn.GELU)


def test_what_stands_there_tells_of_it():
    model = Mlp()
    sparsify_(model, ALL)
    assert "Fused(GELU fused into fc1)" in str(model)
    want, x = model(rows()), rows()
    model.fc1.activation = None  # a user's own decision: the model applies it again
    assert "GELU no longer fused into fc1" in str(model)
    torch.testing.assert_close(model(x), want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["relu", "mlp", "gate", "list", "conv", "gpt2", "coo", "function held"])
def test_densify_gives_it_back(name):
    make, regex, recipe, inputs, expected = FUSED[name]
    model = seeded(make)
    classes = [type(module) for module in model.modules()]
    acts = {id(m) for m in model.modules() if isinstance(m, (nn.ReLU, nn.GELU, nn.SiLU))}
    sparsify_(model, {regex: recipe})
    want = tensor_of(model(inputs()))
    twin = sparseloom.report.whole.dense_twin(model) if hasattr(sparseloom.report, "whole") else None
    densify_(model)
    assert [type(module) for module in model.modules()] == classes
    assert acts <= {id(module) for module in model.modules()}
    torch.testing.assert_close(tensor_of(model(inputs())), want, rtol=1e-4, atol=1e-4)
    if twin is not None:
        torch.testing.assert_close(tensor_of(twin(inputs())), want, rtol=1e-4, atol=1e-4)
    again = sparsify_(model, {regex: recipe})
    assert {c.names[0]: c.activation for c in again.changed if c.activation} == expected


def test_densify_of_some_and_of_own_activations():
    model = nn.Sequential(sequential(nn.ReLU()), sequential(nn.ReLU()), BlockSparseLinear(
        32, 32, density=0.5, block=8, activation="relu"
    ))  # fmt: skip
    sparsify_(model, {r".*\.0": HALF})
    densify_(model, r"0\.0|2")
    assert isinstance(model[0][1], nn.ReLU) and isinstance(model[1][1], Fused)
    assert isinstance(model[2], nn.Sequential)  # the user's own stays with the layer


def test_report_has_a_dense_twin_with_the_activation():
    from sparseloom.report.whole import dense_twin

    model = seeded(Mlp)
    sparsify_(model, ALL)
    twin = dense_twin(model)
    assert isinstance(twin.act, nn.GELU) and isinstance(model.act, Fused)
    torch.testing.assert_close(twin(rows()), model(rows()), rtol=1e-4, atol=1e-5)
    sparseloom.report(model, rows())


def by_reference(model):
    """int8 has no fast kernel on CPUs without AVX-512, and the slow one is taken by name alone."""
    for module in model.modules():
        if hasattr(module, "w_scale"):
            module.kernel = "reference"


def saved(model, path, fresh, **how):
    sparseloom.save(model, path)
    sparseloom.load(path, fresh, **how)
    return fresh


@pytest.mark.parametrize(
    "name", ["relu", "mlp", "gate", "conv", "gelu tanh, 2:4", "coo", "bert", "encoder layer"]
)
def test_round_trip_by_file(name, tmp_path):
    make, regex, recipe, inputs, expected = FUSED[name]
    model = seeded(make)
    sparsify_(model, {regex: recipe})
    want = tensor_of(model(inputs()))
    again = saved(model, tmp_path / "a", make().eval(), sparsify=True)
    assert names_of_fused(again) == sorted(expected)
    assert torch.equal(tensor_of(again(inputs())), want)
    patched = make().eval()
    sparsify_(patched, {regex: recipe})
    assert torch.equal(tensor_of(saved(model, tmp_path / "b", patched)(inputs())), want)
    unfused = make().eval()
    sparsify_(unfused, {regex: recipe}, fuse=False)
    other = tensor_of(saved(model, tmp_path / "c", unfused)(inputs()))
    torch.testing.assert_close(other, want, rtol=1e-4, atol=1e-4)
    plain = saved(unfused, tmp_path / "d", make().eval(), sparsify=True)
    assert not fused_in(plain)  # as it was saved


@pytest.mark.parametrize("eight_bit", [False, True])
@pytest.mark.parametrize("name", ["bert", "gpt2", "llama", "t5"])
def test_round_trip_by_transformers(name, eight_bit, tmp_path):
    make, regex, recipe, inputs, expected = FUSED[name]
    model = make()
    sparsify_(model, {regex: recipe})
    if eight_bit and name != "gpt2":
        quantize_(model)
    told = model.config.quantization_config.to_dict()
    assert told["fused"] == sorted(expected)
    assert not any("activation" in entry for entry in told["layers"].values())
    model.save_pretrained(tmp_path)
    again = type(model).from_pretrained(tmp_path).eval()
    assert names_of_fused(again) == sorted(expected)
    if eight_bit:
        by_reference(again)
        by_reference(model)
    with torch.no_grad():
        assert torch.equal(tensor_of(again(inputs())), tensor_of(model(inputs())))
    if not eight_bit:
        densify_(again)
        assert "quantization_config" not in again.config.to_dict()
        torch.testing.assert_close(
            tensor_of(again(inputs())), tensor_of(model(inputs())), rtol=1e-4, atol=1e-4
        )


def test_copies_and_pickles_have_their_own():
    model = seeded(Mlp)
    sparsify_(model, ALL)
    x = rows()
    buffer = io.BytesIO()
    torch.save(model, buffer)
    buffer.seek(0)
    for twin in (
        copy.deepcopy(model),
        pickle.loads(pickle.dumps(model)),
        torch.load(buffer, weights_only=False),
    ):
        assert twin.act.layer is twin.fc1 and twin.act.layer is not model.fc1
        assert torch.equal(twin(x), model(x))
        densify_(twin)
        assert isinstance(twin.act, nn.GELU) and isinstance(model.act, Fused)


def test_quantize_takes_it_along():
    model = seeded(lambda: nn.Sequential(sequential(nn.GELU()), conv_1x1_last()))
    sparsify_(model, {r"0\..*|1\.1": BlockSparse(16, 0.5)})
    want = model(rows(4, 32))
    quantize_(model)
    by_reference(model)
    assert model[0][1].layer is model[0][0] and model[0][0].activation == "gelu"
    assert model[1][2].layer is model[1][1].linear and model[1][1].linear.activation == "relu"
    with torch.no_grad():
        assert float((model(rows(4, 32)) - want).norm() / want.norm()) < 0.1


def conv_1x1_last():
    return nn.Sequential(nn.Unflatten(1, (16, 2)), nn.Conv1d(16, 16, 1), nn.ReLU())


def test_layers_that_methods_train_keep_theirs_until_pack_fuses_it():
    for method, words in (
        (methods.set_(every=1), "a method moves its blocks"),
        (methods.gradual(0, 1, 1), "it trains under a mask"),
    ):
        model = Mlp()
        result = sparsify_(model, {"fc1": BlockSparse(8, 0.5, method=method)})
        assert isinstance(model.act, nn.GELU) and result.changed[0].unfused == words
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        model(rows()).sum().backward()
        optimizer.step()
        result.method.optimizers = [optimizer]
        result.method.step()
        want = model(rows())
        pack_(model)
        assert model.fc1.activation == "gelu" and names_of_fused(model) == ["fc1"]
        torch.testing.assert_close(model(rows()), want, rtol=1e-4, atol=1e-5)
    model = Mlp()
    sparsify_(model, {"fc1": BlockSparse(8, 0.5, method=methods.gradual(0, 1, 1))}, fuse=False)
    model.fc1.fuse = False
    with pytest.warns(UserWarning, match="made no step"):
        pack_(model)
    assert isinstance(model.act, nn.GELU) and model.fc1.activation is None


def test_drive_gives_it_back():
    from sparseloom.patch import drive

    model = seeded(Mlp)
    sparsify_(model, {"fc1": HALF})
    want = model(rows())
    drive(model, methods.set_(every=1))
    assert model.fc1.activation is None and not names_of_fused(model)
    torch.testing.assert_close(model(rows()), want, rtol=1e-4, atol=1e-5)


@pytest.mark.package("peft")
def test_lora_comes_before_it():
    import peft

    from sparseloom.lora import register_

    model = seeded(lambda: nn.ModuleDict({"mlp": Mlp()}))
    sparsify_(model, {"mlp.fc1": HALF})
    want = model["mlp"](rows())
    config = register_(peft.LoraConfig(target_modules=["fc1"], init_lora_weights=False))
    peft.inject_adapter_in_model(config, model)
    mlp = model["mlp"]
    base = copy.deepcopy(mlp.fc1)
    torch.testing.assert_close(mlp(rows()), mlp.fc2(F.gelu(base(rows()))), rtol=1e-4, atol=1e-5)
    assert not torch.allclose(mlp(rows()), want)


def test_patched_twice_and_compiled():
    model = seeded(lambda: nn.Sequential(sequential(nn.ReLU()), sequential(nn.GELU())))
    want = sparsify_(model, {r"0\.0": HALF})
    assert [c.activation for c in want.changed] == ["relu"]
    act = model[0][1]
    sparsify_(model, {r"1\.0": HALF})
    assert model[0][1] is act and names_of_fused(model) == ["0.0", "1.0"]
    x = rows()
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    assert torch.equal(compiled(x), model(x))


def test_fold_batchnorm_behind_a_fused_activation():
    model = nn.Sequential(nn.Conv2d(8, 16, 3), nn.ReLU(), nn.BatchNorm2d(16)).eval()
    sparsify_(model, {"0": HALF})
    folded = sparseloom.patch.fold_batchnorm_(model)
    assert not folded.pairs and "applies relu before it" in folded.skipped[0].reason


@pytest.mark.parametrize("error", [MemoryError, KeyboardInterrupt])
@pytest.mark.parametrize("where", ["settle", "put", "trace"])
def test_failure_in_the_middle(where, error, monkeypatch):
    from sparseloom.patch import exchange, traced

    model = seeded(lambda: nn.Sequential(sequential(nn.ReLU()), Mlp()))
    sparsify_(model, {r"0\.0": HALF})
    fc1, act, fused = model[1].fc1, model[1].act, model[0][1]

    def fail(*_, **__):
        raise error

    target = {
        "settle": (exchange.Exchange, "settle"),
        "put": (exchange, "update_fast_paths"),
        "trace": (traced._Tracer, "trace"),
    }[where]
    with monkeypatch.context() as patch:
        patch.setattr(*target, fail)
        with pytest.raises(error):
            sparsify_(model, {r"1\.fc1": HALF})
        assert model[1].fc1 is fc1 and model[1].act is act
        if where != "trace":
            with pytest.raises(error):
                densify_(model)
            with pytest.raises(error):
                quantize_(model)
    assert model[0][1] is fused and fused.layer is model[0][0] and fused.active
    sparsify_(model, {r"1\.fc1": HALF})
    assert names_of_fused(model) == ["0.0", "1.fc1"]
