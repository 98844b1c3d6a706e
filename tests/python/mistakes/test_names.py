"""Names: layers and recipes at the top level, keys of all kinds, old names with a deprecation line, one
object under one name."""

import copy
import inspect
import pickle
import re
import subprocess
import sys
from unittest import mock

import nn_kinds
import pytest
import torch
from torch import nn

import sparseloom as sl
from sparseloom import layouts, optim, pattern
from sparseloom.errors import Error
from sparseloom.sparsify import methods, regrow, schedules

BLOCKS = sl.BlockSparse(16, 0.5)
X = torch.randn(4, 64)


def dense():
    return nn.Sequential(nn.Linear(64, 64), nn.Conv1d(64, 64, 1), nn.Sequential(nn.Linear(64, 64)))


def kinds(model):
    return [type(model[0]).__name__, type(model[1]).__name__, type(model[2][0]).__name__]


SPARSE, CONV = "BlockSparseLinear", "BlockSparseConv1x1"


@pytest.mark.parametrize(
    "patterns, expected",
    [
        (BLOCKS, [SPARSE, "Conv1d", SPARSE]),
        ({nn.Linear: BLOCKS}, [SPARSE, "Conv1d", SPARSE]),
        ({nn.Conv1d: BLOCKS, "0": BLOCKS}, [SPARSE, CONV, "Linear"]),
        ({"2.0": BLOCKS}, ["Linear", "Conv1d", SPARSE]),
        ({re.compile(r"2[.]\d"): BLOCKS}, ["Linear", "Conv1d", SPARSE]),
        ({re.compile("0"): sl.Csr(0.1), nn.Module: BLOCKS}, ["SparseLinear", CONV, SPARSE]),
    ],
)
def test_keys_are_names_regexes_and_classes(patterns, expected):
    model = dense()
    sl.sparsify_(model, patterns)
    assert kinds(model) == expected
    pruned = dense()
    sl.prune_(pruned, patterns, method="magnitude")
    assert kinds(pruned) == expected


def test_a_name_is_itself_and_not_a_regex():
    model = nn.ModuleDict({"a_b": nn.Linear(64, 64), "a+b": nn.Linear(64, 64)})
    sl.sparsify_(model, {"a+b": BLOCKS})
    assert type(model["a+b"]).__name__ == SPARSE and type(model["a_b"]) is nn.Linear


def test_quantize_takes_the_same_keys():
    for key in ("0", re.compile("0"), sl.BlockSparseLinear):
        model = nn.Sequential(nn.Linear(64, 64))
        sl.sparsify_(model, BLOCKS)
        sl.quantize_(model, {key: torch.int8})
        assert type(model[0]) is sl.QuantizedBlockSparseLinear


RECIPES = {
    "csr": (sl.Csr(density=0.1), sl.InLayout("csr", density=0.1)),
    "coo": (sl.Coo(0.1), sl.InLayout("coo", density=0.1)),
    "bitmap": (sl.Bitmap(0.1), sl.InLayout("bitmap", density=0.1)),
    "nm": (sl.Nm(2, 8), sl.InLayout("nm", n=2, m=8)),
    "semi24": (sl.Semi24(select="magnitude"), sl.Semi24("magnitude")),
    "stored": (sl.Csr(), sl.InLayout("csr")),
    "trained": (sl.Csr(0.1, method="gradual"), sl.InLayout("csr", methods.gradual(), density=0.1)),
    "trained 2:4": (sl.Semi24(method="semi24"), sl.InLayout("semi24", methods.semi24())),
    "rigl": (sl.BlockSparse(16, 0.5, method="rigl"), sl.BlockSparse(16, 0.5, method=methods.rigl())),
}


@pytest.mark.parametrize("name", RECIPES)
def test_recipes_by_name_are_those_of_layouts(name):
    states = []
    for recipe in RECIPES[name]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(64, 64))
        sl.sparsify_(model, recipe)
        states.append(model.state_dict())
    assert states[0].keys() == states[1].keys()
    assert all(torch.equal(entry, states[1][key]) for key, entry in states[0].items())


def test_layers_are_at_the_top_and_in_nn():
    assert set(sl.nn.__all__) <= set(sl.__all__) and not {"nn", "optim"} & set(sl.__all__)
    for name in sl.nn.__all__:
        assert getattr(sl, name) is getattr(sl.nn, name)
    assert sl.fold_batchnorm_ is sl.patch.fold_batchnorm_


#: An old name of an argument -> the same with the new one.
RENAMED = {
    "Constant": (lambda: schedules.Constant(5, end_step=20), lambda: schedules.Constant(5, end=20)),
    "Cubic": (lambda: schedules.Cubic(begin=2, end=9), lambda: schedules.Cubic(start=2, end=9)),
    "Polynomial": (lambda: schedules.Polynomial(begin=2), lambda: schedules.Polynomial(start=2)),
    "Alternating": (
        lambda: schedules.Alternating(warm_up=2, phase=3, end=20), lambda: schedules.Alternating(2, 3, 20),
    ),
    "Rising": (
        lambda: schedules.Rising(0.1, begin=2, turn=3, end=9), lambda: schedules.Rising(0.1, 2, 3, 9),
    ),
    "rigl": (lambda: methods.rigl(end_step=20), lambda: methods.rigl(end=20)),
    "set_": (lambda: methods.set_(end_step=20), lambda: methods.set_(end=20)),
    "gradual": (lambda: methods.gradual(begin=2, end=9), lambda: methods.gradual(start=2, end=9)),
    "ac_dc": (lambda: methods.ac_dc(warm_up=2, phase=3, end=20), lambda: methods.ac_dc(2, 3, 20)),
    "begin": (lambda: schedules.Cubic(2, 9).begin, lambda: schedules.Cubic(2, 9).start),
    "end_step": (lambda: schedules.Constant(5, 20).end_step, lambda: schedules.Constant(5, 20).end),
    "phase": (lambda: schedules.Alternating(2, 3, 20).phase, lambda: schedules.Alternating(2, 3, 20).every),
}  # fmt: skip


@pytest.mark.parametrize("name", RENAMED)
def test_old_names_work_with_a_deprecation_line(name):
    old, new = RENAMED[name]
    with pytest.warns(DeprecationWarning, match="is called .* now") as told:
        made = old()
    assert re.sub("0x[0-9a-f]+", "", repr(made)) == re.sub("0x[0-9a-f]+", "", repr(new()))
    assert told[0].filename == __file__


@pytest.mark.parametrize(
    "schedule", ["Constant", "Polynomial", "Cubic", "Alternating", "Sharpening", "Rising"]
)
def test_every_schedule_has_start_end_and_every(schedule):
    assert {"start", "end", "every"} <= inspect.signature(getattr(schedules, schedule)).parameters.keys()


LAYERS = {
    "linear": lambda **seed: sl.BlockSparseLinear(64, 64, density=0.5, block=16, **seed),
    "conv": lambda **seed: sl.BlockSparseConv2d(32, 32, 3, density=0.5, block=16, **seed),
    "transposed": lambda **seed: sl.BlockSparseConvTranspose2d(32, 32, 3, density=0.5, block=16, **seed),
    "lstm": lambda **seed: sl.BlockSparseLSTM(32, 32, density=0.5, block=16, **seed),
    "csr": lambda **seed: sl.SparseLinear(64, 64, layout="csr", density=0.1, **seed),
    "semi24": lambda **seed: sl.Semi24Linear(64, 64, **seed),
    "masked": lambda **seed: sl.MaskedLinear(64, 64, **seed),
    "masked semi24": lambda **seed: sl.Semi24Training(64, 64, **seed),
    "attention": lambda **seed: sl.BlockSparseSelfAttention(64, 4, pattern=lambda tokens: None, **seed),
}


@pytest.mark.parametrize("kind", LAYERS)
def test_a_seed_is_an_int_or_a_generator_in_every_layer(kind):
    before = torch.get_rng_state()
    make = LAYERS[kind]
    for seed in (lambda: 3, lambda: torch.Generator().manual_seed(3)):
        one, two, other = make(seed=seed()), make(seed=seed()), make(seed=4)
        states = [list(layer.state_dict().values()) for layer in (one, two, other)]
        assert all(torch.equal(a, b) for a, b in zip(*states[:2], strict=True))
        same = [a.shape == b.shape and torch.equal(a, b) for a, b in zip(states[0], states[2], strict=True)]
        assert not all(same)
    assert torch.equal(before, torch.get_rng_state())
    with pytest.raises(Error, match="seed"):
        make(seed="3")


def test_seeds_of_recipes_and_methods_may_be_generators():
    for seed in (5, torch.Generator().manual_seed(5)):
        recipe = sl.BlockSparse(16, 0.5, "random", seed=seed)
        model = nn.Sequential(nn.Linear(64, 64))
        sl.sparsify_(model, recipe)
        assert model[0].density == 0.5
    drawn = regrow.Random(seed=torch.Generator().manual_seed(5)).seed
    assert isinstance(drawn, int) and methods.set_(seed=7).regrow.seed == 7
    with pytest.warns(DeprecationWarning, match="seed"):
        sl.BlockSparseLinear(64, 64, density=0.5, generator=3)


def test_load_takes_either_order(tmp_path):
    model = nn.Sequential(nn.Linear(4, 4))
    sl.save(model, tmp_path / "a.safetensors")
    for arguments in ((tmp_path / "a.safetensors",), ()):
        other = nn.Sequential(nn.Linear(4, 4))
        sl.load(*arguments, other) if arguments else sl.load(other, tmp_path / "a.safetensors")
        assert torch.equal(other[0].weight, model[0].weight)


ONE_OBJECT = """
import sparseloom, types
import sparseloom.report as reports, sparseloom.advise as advises, sparseloom.recover as recovers
for name, module in {"report": reports, "advise": advises, "recover": recovers}.items():
    assert getattr(sparseloom, name) is module and isinstance(module, types.ModuleType), name
    assert callable(module)
from sparseloom.report import LayerReport
from sparseloom import report
assert report.LayerReport is LayerReport
import inspect
print(list(inspect.signature(sparseloom.report).parameters)[:2])
"""


def test_a_module_and_its_function_are_one_object():
    done = subprocess.run([sys.executable, "-c", ONE_OBJECT], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "['model', 'example_input']"
    assert not hasattr(sl, "no_such_name") and hasattr(sl, "permute")


@pytest.mark.parametrize("explicit", ["", "step", "attach"])
def test_a_run_attaches_itself_to_the_optimizer_given(explicit):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 64))
    optimizer = optim.AdamW(model.parameters(), lr=1e-3)
    method = methods.set_(every=2)
    done = sl.sparsify_(model, sl.BlockSparse(16, 0.5, "random", method=method), optimizer=optimizer)
    assert done.run is done.method
    if explicit == "attach":
        done.run.attach(optimizer)
    for _ in range(5):
        optimizer.zero_grad()
        model(X).square().mean().backward()
        optimizer.step()
        if explicit == "step":
            done.run.step()
    assert done.run.steps == 5


QUESTIONS = ("density", "strict", "kernel", "dense_copy", "activation")


@pytest.mark.parametrize("question", (*QUESTIONS, "plan", "to_dense"))
def test_every_kind_of_layer_answers(question):
    for kind, make in nn_kinds.KINDS.items():
        layer = make()
        try:
            answer = getattr(layer, question)
            if question == "plan":
                answer = layer.plan(shape=nn_kinds.SHAPES.get(kind, [8, 64]))
                assert answer, kind
            elif question == "to_dense":
                assert isinstance(layer.to_dense(), nn.Module)
        except Error as refused:
            assert refused.remedy and (kind, question) in nn_kinds.REFUSED, (kind, question, str(refused))
            continue
        if question == "density":
            assert 0 < answer <= 1, kind
        elif question == "strict":
            assert answer is False, kind
        elif question == "kernel":
            assert answer is None, kind


@pytest.mark.parametrize("kind", nn_kinds.KINDS)
def test_every_kind_of_layer_adds_a_residual(kind):
    layer = nn_kinds.KINDS[kind]().eval()
    x = torch.randn(nn_kinds.CALLED.get(kind, [8, 64]))
    if (kind, "residual") in nn_kinds.REFUSED:
        with pytest.raises(Error, match="add it to the layer's result"):
            layer(x, residual=x)
        return
    if kind.startswith("quantized"):
        layer.kernel = "reference"  # a CPU without VNNI has no other
    with torch.no_grad():
        y = layer(x)
        residual = torch.randn_like(y)
        torch.testing.assert_close(layer(x, residual=residual), y + residual)
        for wrong in (residual[..., :-1], residual.double()):
            with pytest.raises(Error, match="residual"):
                layer(x, residual=wrong)
        with torch.autocast("cpu", torch.bfloat16):
            added = layer(x, residual=residual)
            torch.testing.assert_close(added, layer(x) + residual.to(added.dtype), atol=0.1, rtol=0.1)


#: Kinds whose bias, or dense part, is the same Parameter, as their docstrings say: an optimizer has it.
SHARING = {"masked", "masked 2:4", "mha"}


@pytest.mark.parametrize("kind", sorted({*nn_kinds.KINDS} - SHARING))
def test_a_dense_twin_shares_no_memory_with_its_layer(kind):
    layer = nn_kinds.KINDS[kind]()
    try:
        dense = layer.to_dense()
    except Error:  # small worlds of a function and attention have none
        return
    own = {part.data_ptr() for part in (*layer.parameters(), *layer.buffers()) if part.numel()}
    assert not any(part.data_ptr() in own for part in dense.parameters() if part.numel())


def test_a_hooks_own_type_error_stays():
    def mend(module, args, kwargs):
        return (torch.ones(1, 64),), {}

    def fail(module, args, y):
        raise TypeError("of the hook")

    layer = nn_kinds.linear()
    layer.register_forward_pre_hook(mend, with_kwargs=True)
    layer.register_forward_hook(fail)
    with pytest.raises(TypeError, match="of the hook") as refused:
        layer(no_such_argument=1)
    assert not isinstance(refused.value, Error)


def test_hf_config_sparsifies_while_it_loads(tmp_path):
    transformers = pytest.importorskip("transformers")
    from sparseloom.hf import SparsifyConfig

    sizes = {"hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64}
    model = transformers.BertModel(
        transformers.BertConfig(vocab_size=30, max_position_embeddings=16, **sizes)
    ).eval()
    model.save_pretrained(tmp_path / "dense")
    config = SparsifyConfig({r".*intermediate.dense": BLOCKS})
    made = transformers.AutoModel.from_pretrained(tmp_path / "dense", quantization_config=config).eval()
    sl.sparsify_(model, {r".*intermediate.dense": BLOCKS})
    tokens = torch.arange(8)[None]
    assert torch.equal(made(tokens)[0], model(tokens)[0])
    made.save_pretrained(tmp_path / "sparse")
    again = transformers.AutoModel.from_pretrained(tmp_path / "sparse").eval()
    assert torch.equal(again(tokens)[0], model(tokens)[0])
    with pytest.warns(UserWarning, match="from the model will be used"):  # the checkpoint is sparse already
        other = SparsifyConfig({r".*output.dense": BLOCKS})
        kept = transformers.AutoModel.from_pretrained(tmp_path / "sparse", quantization_config=other).eval()
    assert torch.equal(kept(tokens)[0], model(tokens)[0])
    with pytest.raises(Error, match="did you mean strict"):
        SparsifyConfig(BLOCKS, stric=True)


def test_a_pattern_is_selected():
    made = pattern.random(64, 64, 16, 0.5, seed=0)
    assert sl.BlockSparseLinear.from_dense(nn.Linear(64, 64), select=made).pattern == made
    assert layouts.get("csr") is layouts.Csr


@pytest.mark.parametrize("key", [r"[a-z]*", r"(fc)?", ""])
def test_a_key_that_matches_nothing_takes_no_other_name(key):
    model = nn.ModuleDict({"fc": nn.Linear(64, 64), "fc1": nn.Linear(64, 64)})
    if key:
        sl.sparsify_(model, {key: sl.BlockSparse(density=0.5)})
    else:
        with pytest.raises(Error):
            sl.sparsify_(model, {key: sl.BlockSparse(density=0.5)})
    assert type(model["fc1"]) is nn.Linear
    assert (type(model["fc"]) is nn.Linear) == (not key)


def test_a_run_follows_the_optimizers_that_are_assigned():
    for explicit in (False, True):
        net = nn.Sequential(nn.Linear(128, 128))
        first = torch.optim.AdamW(net.parameters())
        run = sl.sparsify_(net, sl.BlockSparse(density=0.5, method="rigl"), optimizer=first).run
        optimizer = first
        for step in range(10):
            if step == 5:
                optimizer = run.optimizers = torch.optim.AdamW(net.parameters())
            net(torch.randn(4, 128)).square().mean().backward()
            optimizer.step()
            if explicit and step >= 5:
                run.step()
        assert run.steps == 10


def test_a_late_first_step_warns():
    net = nn.Sequential(nn.Linear(128, 128))
    optimizer = torch.optim.AdamW(net.parameters())
    run = sl.sparsify_(net, sl.BlockSparse(density=0.5, method="rigl"), optimizer=optimizer).run
    for _ in range(3):
        net(torch.randn(4, 128)).square().mean().backward()
        optimizer.step()
    with pytest.warns(UserWarning, match="3 steps of the optimizer counted before"):
        run.step()
    assert run.steps == 3


def test_a_compiled_step_of_the_optimizer_changes_blocks():
    net = nn.Sequential(nn.Linear(128, 128))
    optimizer = torch.optim.AdamW(net.parameters())
    method = sl.sparsify.methods.rigl(every=2)
    run = sl.sparsify_(net, sl.BlockSparse(density=0.5, method=method), optimizer=optimizer).run
    step = torch.compile(optimizer.step, backend="eager")
    for _ in range(4):
        net(torch.randn(4, 128)).square().mean().backward()
        step()
    assert run.steps == 4


def test_modules_that_are_called_pickle_copy_and_take_patches():
    for room in (sl.report, sl.advise, sl.recover):
        assert pickle.loads(pickle.dumps(room)) is room
        assert copy.deepcopy([room])[0] is room
    with mock.patch("sparseloom.report.report", lambda *_: "patched"):
        assert sl.report(nn.Linear(1, 1)) == "patched"


def test_a_layer_on_meta_has_its_values_there():
    for bias in (True, False):
        layer = sl.nn.SparseLinear(64, 64, bias, layout="csr", density=0.1, device="meta")
        assert layer.values.is_meta
