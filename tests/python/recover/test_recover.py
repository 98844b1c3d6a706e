"""recover: a sparse model learns what its teacher does, and what is pruned stays pruned."""

import copy
import sys

import pytest
import torch
from torch import nn

import sparseloom
from sparseloom import BlockSparse, Distillation, Error, InLayout, Semi24, recover, sparsify_
from sparseloom.sparsify import methods as M

RECIPES = {
    "blocks": BlockSparse(8, density=0.5),
    "semi24": Semi24(prune="magnitude"),
    "csr": InLayout("csr", density=0.5),
}


class Net(nn.Module):
    """Two layers with dropout, which a recovery must not lose."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.drop, self.down = nn.Linear(32, 64), nn.Dropout(0.1), nn.Linear(64, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(self.drop(self.up(x).relu()))


def pair(kind="blocks"):
    """Returns a sparse model and its dense teacher."""
    torch.manual_seed(0)
    teacher = Net()
    model = copy.deepcopy(teacher)
    sparsify_(model, {"up|down": RECIPES[kind]} if kind != "blocks" else {"up": RECIPES[kind]})
    return model.eval(), teacher


def batches(count=8):
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(16, 32, generator=generator) for _ in range(count)]


def distance(teacher):
    """Returns what ``evaluate`` takes: the mean squared distance of logits."""
    x = torch.cat(batches())
    return lambda model: float((model(x) - teacher(x)).square().mean())


def places(model):
    found = {}
    for name in ("up", "down"):
        layer = getattr(model, name)
        dense = layer.to_dense() if hasattr(layer, "sparse_weights") else layer
        found[name] = dense.weight == 0
    return found


@pytest.mark.parametrize("rank", [None, 8])
@pytest.mark.parametrize("kind", RECIPES)
def test_a_model_comes_nearer_to_its_teacher_and_keeps_its_places(kind, rank):
    model, teacher = pair(kind)
    zeros, kinds = places(model), [type(each) for each in model.modules()]
    frozen = model.down.bias.clone()
    done = recover(model, teacher.eval(), batches(), steps=60, lr=1e-2, rank=rank, evaluate=distance(teacher))
    assert done.after < 0.7 * done.before and done.steps == 60 and done.ended_by == "steps"
    assert kinds == [type(each) for each in model.modules()] and not model.training
    assert all(bool(places(model)[name][at].all()) for name, at in zeros.items())
    assert torch.equal(frozen, model.down.bias) == (rank is not None)
    assert (kind == "semi24" or rank is not None) == bool(done.masked)
    assert all(parameter.requires_grad for parameter in (model.up.bias, model.down.bias))
    assert "60 steps" in str(done) and done.to_dict()["after"] == done.after


def test_masks_that_a_method_changes_are_packed_at_the_end():
    torch.manual_seed(0)
    teacher = Net()
    model = copy.deepcopy(teacher)
    gradual = M.gradual(start=2, end=20, every=2)
    run = sparsify_(model, {"up": BlockSparse(8, density=0.25, method=gradual)}).method
    done = recover(model, teacher, batches(), steps=30, lr=1e-3, method=run)
    assert isinstance(model.up, sparseloom.nn.BlockSparseLinear) and model.up.density == 0.25
    assert run.steps == done.steps == 30


class Encoder(nn.Module):
    """An encoder that returns what transformers' do."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(16, 16) for _ in range(2))

    def forward(self, tokens, attention_mask=None):
        for layer in self.layers:
            tokens = layer(tokens).tanh()
        return {"last_hidden_state": tokens, "logits": tokens[..., :5], "loss": tokens.sum() * 0}


TERMS = [
    {"logits": 1.0},
    {"hidden": 2.0, "at": r"layers\.\d"},
    {"embeddings": 1.0},
    {"logits": 0.5, "hidden": 0.5, "embeddings": 0.5, "labels": 1.0, "at": r"layers\.1"},
]


@pytest.mark.parametrize("terms", TERMS, ids=lambda terms: "+".join(terms))
def test_each_term_is_zero_beside_the_teacher_itself_and_ignores_masked_tokens(terms):
    torch.manual_seed(0)
    teacher = Encoder()
    student = copy.deepcopy(teacher)
    mask = torch.tensor([[1, 1, 1, 0], [1, 1, 0, 0]])
    batch = {"tokens": torch.randn(2, 4, 16), "attention_mask": mask}
    loss = Distillation(teacher, **terms)
    assert abs(loss(student, batch).item()) < 1e-6
    with torch.no_grad():
        student.layers[1].weight.mul_(1.5)
    value = loss(student, batch)
    value.backward()
    assert value > 1e-4 and student.layers[0].weight.grad.any()
    assert teacher.layers[0].weight.grad is None
    noise = torch.randn(2, 4, 16) * (1 - mask)[..., None]
    torch.testing.assert_close(loss(student, batch | {"tokens": batch["tokens"] + noise}), value)


def test_logits_of_two_tokens_are_compared_by_their_formula():
    class Fixed(nn.Module):
        def __init__(self, logits):
            super().__init__()
            self.logits = nn.Parameter(torch.tensor(logits))

        def forward(self, x):
            return self.logits

    teacher, student = Fixed([[1.0, 0.0], [0.0, 3.0]]), Fixed([[0.0, 0.0], [1.0, 1.0]])
    p = torch.softmax(teacher.logits / 2, -1)
    expected = 4 * (p * (p.log() - torch.softmax(student.logits / 2, -1).log())).sum(-1).mean()
    torch.testing.assert_close(Distillation(teacher, logits=1.0)(student, torch.ones(1)), expected)


def test_a_killed_recovery_goes_on_to_the_same_bits(tmp_path, monkeypatch):
    monkeypatch.setattr(sys.modules["sparseloom.recover.checkpoint"], "_EVERY", 0.0)
    results = []
    for dies_at in (None, 5):
        model, teacher = pair("semi24")
        seen = 0

        def loss(student, x, teacher=teacher, dies_at=dies_at):
            nonlocal seen
            seen += 1
            if dies_at is not None and seen == dies_at + 2:  # one more to look at the first batch
                raise KeyboardInterrupt
            return (student(x) - teacher(x)).square().mean()

        options = {"steps": 12, "lr": 1e-2, "checkpoint": tmp_path / f"{dies_at}.pt"}
        torch.manual_seed(3)
        if dies_at is not None:
            with pytest.raises(KeyboardInterrupt):
                recover(model, loss, batches(), **options)
            assert isinstance(model.up, sparseloom.nn.Semi24Linear)
            model, dies_at = pair("semi24")[0], None
            torch.manual_seed(4)  # another process
            seen = -100
        done = recover(model, loss, batches(), **options)
        assert done.steps == 12 and not list(tmp_path.iterdir())
        results.append(model.state_dict())
    assert all(torch.equal(value, results[1][key]) for key, value in results[0].items())


def nan(model, batch):
    return model(batch).sum() * float("nan")


BAD = [
    ({}, "a budget"),
    ({"steps": 0}, "steps"),
    ({"minutes": -1.0}, "minutes"),
    ({"steps": 3, "data": []}, "a batch"),
    ({"steps": 3, "teacher": nan}, "finite loss in step 0"),
    ({"steps": 3, "data": [torch.full((2, 32), float("nan"))]}, "finite loss in step 0"),
    ({"steps": 3, "teacher": lambda model, batch: model(batch)}, "without dimensions"),
    ({"steps": 3, "teacher": "model"}, "beside the model"),
    ({"steps": 3, "rank": 0}, "rank"),
    ({"steps": 3, "checkpoint": "/no/such/folder/file"}, "folder"),
]


@pytest.mark.parametrize(("options", "words"), BAD, ids=[words for _, words in BAD])
def test_bad_arguments_and_data_are_refused_before_anything_changed(options, words):
    model, teacher = pair("semi24")
    before = copy.deepcopy(model.state_dict())
    options = {"data": batches(), "teacher": teacher} | options
    if options["teacher"] == "model":
        options["teacher"] = model
    with pytest.raises(Error, match=words):
        recover(model, options.pop("teacher"), options.pop("data"), **options)
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    assert before.keys() == model.state_dict().keys()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, "above"),
        ({"logits": -1.0}, ">= 0"),
        ({"logits": 1.0, "temperature": 0.0}, "temperature"),
        ({"hidden": 1.0}, "whose outputs"),
        ({"hidden": 1.0, "at": "nothing"}, "up, drop, down"),
    ],
)
def test_a_distillation_that_compares_nothing_is_refused(options, words):
    with pytest.raises(Error, match=words):
        Distillation(Net(), **options)


def test_a_generator_ends_the_recovery_and_says_so():
    model, teacher = pair()
    done = recover(model, teacher, iter(batches(3)), steps=10)
    assert done.steps == 3 and done.ended_by == "data" and "DataLoader" in str(done)


def plain(kind="semi24", fuse=True):
    """Returns a sparse model of two layers, and its teacher."""
    torch.manual_seed(0)
    teacher = nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 32))
    model = copy.deepcopy(teacher)
    sparsify_(model, {"[02]": RECIPES[kind]}, fuse=fuse)
    return model, teacher


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("kind", RECIPES)
def test_models_of_16_bits_learn_and_stay_finite(kind, dtype):
    model, teacher = (each.to(dtype) for each in plain(kind))
    data = [x.to(dtype) for x in batches()]
    done = recover(model, teacher, data, steps=40, lr=2e-3)
    losses = list(done.losses.values())
    assert 0 < losses[-1] < 0.8 * losses[0]  # KL below zero was rounding of 16-bit logits
    assert all(parameter.isfinite().all() for parameter in model.parameters())


@pytest.mark.parametrize("kind", RECIPES)
def test_a_gradient_that_is_not_finite_ends_it_before_a_step(kind):
    model, _ = plain(kind)
    kinds, before = [type(each) for each in model], copy.deepcopy(model.state_dict())

    def loss(student, x):  # zero, with an infinite slope
        return (student(x) * 0).norm(dim=-1).sqrt().sum()

    with pytest.raises(Error, match="finite gradient in step 0"):
        recover(model, loss, batches(), steps=3)
    assert kinds == [type(each) for each in model]
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())


@pytest.mark.parametrize("rank", [None, 4])
def test_frozen_layers_hooks_and_masked_layers_of_a_user_stay(rank):
    model, teacher = plain("csr")
    model[0].values.requires_grad_(False)
    frozen, seen = model[0].values.clone(), []
    handle = model[2].register_forward_hook(lambda *_: seen.append(1))
    recover(model, teacher, batches(), steps=3, lr=1e-2, rank=rank)
    assert torch.equal(model[0].values, frozen) and not model[0].values.requires_grad
    assert model[2].values.requires_grad
    seen.clear()
    model(batches()[0])
    handle.remove()
    model(batches()[0])
    assert seen == [1]
    model, teacher = plain("semi24")
    sparseloom.unpack_(model, "0")
    recover(model, teacher, batches(), steps=3)
    kinds = [type(each).__name__ for each in model]
    assert kinds == ["Semi24Training", "ReLU", "Semi24Linear"]


def test_hidden_states_of_layers_with_a_fused_activation_are_compared_behind_it():
    torch.manual_seed(0)
    teacher = nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 32))
    model = copy.deepcopy(teacher)
    sparsify_(model, {"[02]": BlockSparse(8, density=1.0)})
    assert model[0].activation == "relu"
    loss = Distillation(teacher, hidden=1.0, at="[02]")
    assert loss(model, batches()[0]).item() < 1e-6


def test_a_checkpoint_of_another_model_or_a_damaged_one_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(sys.modules["sparseloom.recover.checkpoint"], "_EVERY", 0.0)
    path, seen = tmp_path / "state.pt", 0

    def loss(student, x):
        nonlocal seen
        seen += 1
        if seen == 4:
            raise KeyboardInterrupt
        return student(x).square().mean()

    with pytest.raises(KeyboardInterrupt):
        recover(plain()[0], loss, batches(), steps=9, checkpoint=path)
    whole = path.read_bytes()
    model, _ = plain()
    before = copy.deepcopy(model.state_dict())
    state = torch.load(path, weights_only=True)
    value = next(iter(state["model"].values())).numpy().tobytes()
    state["optimizer"]["param_groups"] = []  # the model's part fits, what follows does not
    torch.save(state, tmp_path / "half.pt")
    flipped = whole.replace(value, bytes([value[0] ^ 1]) + value[1:])
    for content in ((tmp_path / "half.pt").read_bytes(), flipped):
        path.write_bytes(content)
        with pytest.raises(Error, match="of this recovery"):
            recover(model, loss, batches(), steps=9, checkpoint=path)
        assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    path.write_bytes(whole)
    with torch.no_grad():
        model[0].bias.add_(1)
    before = copy.deepcopy(model.state_dict())
    for content in (whole, b"garbage", whole[:200]):
        path.write_bytes(content)
        with pytest.raises(Error, match="of this recovery"):
            recover(model, loss, batches(), steps=9, checkpoint=path)
        assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
