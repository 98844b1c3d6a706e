"""Layers that read the same x multiply with it once: where they do, where they do not, and what becomes of
it."""

import copy
import pickle
import threading

import pytest
import torch
from fuse_forms import Gate, results
from sibling_models import ALL, Q_K_V, Attention, apart, bert, llama, merged, tokens, words
from torch import nn

import sparseloom
from sparseloom import densify_, sparsify_
from sparseloom.nn.held.siblings import Siblings, names_of_merged, siblings_in
from sparseloom.patch.calls import called_alike


@pytest.fixture
def products(monkeypatch):
    """One entry for each time that a group was asked: whether it multiplied for all."""
    asked, multiplied = [], Siblings._multiplied

    def spy(self, x):
        made = multiplied(self, x)
        asked.append(made is not None)
        return made

    monkeypatch.setattr(Siblings, "_multiplied", spy)
    return asked


def all_close(model, twin, x, dtype=torch.float32):
    want, got = results(twin, x), results(model, x)
    # a key's bias moves all scores of a query alike, which softmax takes away: its gradient is rounding alone
    largest = max(float(each.float().norm()) for each in want.values())
    for key, each in got.items():
        # the same sums in another order, by kernels of another shape: a few roundings of the dtype
        scale = float(want[key].float().norm()) + 1e-3 * largest
        allowed = 2**-18 if dtype == torch.float32 else 2**-5
        assert float((each.float() - want[key].float()).norm()) <= allowed * scale, key


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("make", "inputs", "names", "count"),
    [
        (Attention, tokens, Q_K_V, 1),
        (lambda: Attention(bias=False), tokens, Q_K_V, 1),
        (bert, words, [f"encoder.layer.{i}.attention.self.{n}" for i in (0, 1) for n in Q_K_V], 2),
        (llama, words, [f"layers.0.mlp.{n}_proj" for n in ("gate", "up")]
         + [f"layers.0.self_attn.{n}_proj" for n in "kqv"], 1),
    ],
    ids=["attention", "without biases", "bert", "llama"],
)  # fmt: skip
def test_merged_equals_apart(make, inputs, names, count, dtype, products):
    model = merged(make).to(dtype)
    assert names_of_merged(model) == names
    x = inputs() if inputs is words else inputs().to(dtype)
    twin = apart(model)
    assert list(model.state_dict()) == list(twin.state_dict())
    assert [n for n, _ in model.named_modules()] == [n for n, _ in twin.named_modules()]
    products.clear()
    all_close(model, twin, x, dtype)
    # eagerly a gate, whose activation is its own, multiplies by itself
    assert products.count(True) == count


def test_the_table_says_who_multiplies_together():
    model = Attention()
    changed = {each.names[0]: each.merged for each in sparsify_(model, ALL).changed}
    assert changed == {
        "query": ("key", "value"), "key": ("query", "value"), "value": ("query", "key"), "out": (),
    }  # fmt: skip
    other = Attention()
    assert not any(each.merged for each in sparsify_(other, ALL, fuse=False).changed)
    assert not siblings_in(other)


def test_a_compiled_gate_multiplies_once_and_is_not_compiled_again():
    model = merged(Gate)
    assert names_of_merged(model) == ["gate", "up"]
    twin, x, graphs = apart(model), torch.randn(600, 32), list[torch.fx.GraphModule]()

    def keep(graph, example):
        graphs.append(graph)
        return graph

    compiled = torch.compile(model, backend=keep, fullgraph=True)
    with torch.no_grad():
        for _ in range(2):
            torch.testing.assert_close(compiled(x), twin(x), rtol=1e-4, atol=1e-5)
            torch.testing.assert_close(model(x), twin(x), rtol=1e-4, atol=1e-5)
    (graph,) = graphs
    # gate and up, and down
    assert sum("bsr_linear" in str(node.target) for node in graph.graph.nodes) == 2


class Cases(Attention):
    """What decides whether a later call takes its part, by ``case``."""

    case = ""

    def forward(self, x):
        q = self.query(x)
        if self.case == "written":
            x.mul_(2)
        if self.case == "no grad":
            with torch.no_grad():
                k = self.key(x)
        else:
            k = self.key(x)
        return q + k + self.value(x)


class Reassigned(Attention):
    def forward(self, x):
        q = self.query(x)
        x = x * 2
        return q + self.key(x) + self.value(x)


class Branch(Attention):
    def forward(self, x):
        y = self.query(x)
        if x.shape[0] > 1:
            y = y + self.key(x)
        return y + (self.value(x) if x.dim() == 3 else 0)


class Twice(Attention):
    def forward(self, x):
        return self.query(x) + self.query(x) + self.key(x)


class Keyword(Attention):
    def forward(self, x):
        return self.query(input=x) + self.key(x)


@pytest.mark.parametrize(
    ("make", "names"),
    [(Reassigned, ["key", "value"]), (Branch, []), (Twice, []), (lambda: nn.Sequential(Attention()), None)],
)
def test_groups_by_source(make, names):
    model = merged(make)
    want = [f"0.{name}" for name in Q_K_V] if names is None else names
    assert names_of_merged(model) == want
    all_close(model, apart(model), tokens())


@pytest.mark.parametrize("case", ["written", "no grad"])
def test_a_part_serves_the_very_same_x_in_the_same_mode_alone(case):
    model = merged(Cases)
    group = siblings_in(model)[0] if siblings_in(model) else Siblings(model, ("query", "key", "value"))
    assert group.layers
    model.case = case
    twin = apart(model)
    x = tokens()
    with torch.set_grad_enabled(case == "no grad"):  # autograd itself refuses an x that was written
        want, got = twin(x.clone()), model(x.clone())
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)
    if case == "no grad":
        got.sum().backward()
        assert not model.key.values.grad.any()


def _hooked(model):
    model.key.register_forward_pre_hook(lambda module, args: (args[0] * 2,))


def _main_grad(model):
    model.value.fuse_wgrad_accumulation = True
    model.value.values.main_grad = torch.zeros_like(model.value.values)


def _copied(model):
    model.query.dense_copy = True


def _moves(model):
    model.query.set_topology_(model.query.pattern.mask.flip(0))


def _another_pattern(model):
    other = merged()
    model.load_state_dict(other.state_dict())


def _parametrized(model):
    nn.utils.parametrizations.weight_norm(model.value, "values")


def _bias_computed(model):
    nn.utils.parametrize.register_parametrization(model.query, "bias", nn.Tanh())


def _no_bias(model):
    model.key.bias = None


def _other_dtype(model):
    model.value.double()


def _on_meta(model):
    model.value.bias = nn.Parameter(model.value.bias.to("meta"))


@pytest.mark.parametrize("change", [_other_dtype, _on_meta])
def test_what_a_layer_refuses_it_refuses_among_siblings(change):
    model = merged()
    change(model)
    twin = apart(model)
    with pytest.raises(sparseloom.Error) as alone:
        twin(tokens())
    with pytest.raises(sparseloom.Error) as together:
        model(tokens())
    assert str(together.value) == str(alone.value)


@pytest.mark.parametrize(
    ("change", "still"),
    [
        (_bias_computed, False),
        (_no_bias, False),
        (_hooked, True),
        (_main_grad, False),
        (_copied, False),
        (_moves, False),
        (_another_pattern, True),
        (_parametrized, False),
    ],
)
def test_what_happens_to_a_layer_later(change, still, products):
    model = merged()
    change(model)
    twin = apart(model)
    products.clear()
    torch.testing.assert_close(model(tokens()), twin(tokens()), rtol=1e-4, atol=1e-5)
    assert products == [still]
    if change is _main_grad:
        model(tokens()).sum().backward()
        assert model.value.values.grad is None and float(model.value.values.main_grad.abs().sum()) > 0


def test_topology_that_is_fixed_again_multiplies_together(products):
    model = merged()
    _moves(model)
    model.query.fix_topology_()
    twin = apart(model)
    torch.testing.assert_close(model(tokens()), twin(tokens()), rtol=1e-4, atol=1e-5)
    assert products == [True]


def test_a_layer_alone_multiplies_alone(products):
    model = merged()
    model.query(tokens()), model.key(tokens())
    assert products == []
    lone = copy.deepcopy(model.query)
    assert lone._siblings is None


def test_a_forward_that_stops_in_its_middle_holds_nothing():
    """As a checkpoint's does, once it has what the backward pass wants."""
    model = merged()
    model.key.register_forward_pre_hook(lambda module, args: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        model(tokens())
    (group,) = siblings_in(model)
    assert group.results is None and not group.running


def test_threads_take_their_own_parts():
    model, failed = merged(), list[float]()
    twin = apart(model)

    def work(seed):
        numbers = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for _ in range(50):
                x = torch.randn(16, 12, 32, generator=numbers)
                failed.append(float((model(x) - twin(x)).abs().max()))

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(failed) == 300 and max(failed) < 1e-5


def test_few_tokens_are_not_worth_a_copy_of_the_values(products):
    model = merged()
    model(tokens()[:1, :2])
    assert products == [False]


def test_densify_and_exchange_end_it():
    model = merged()
    want = model(tokens())
    densify_(model)
    assert not siblings_in(model) and not model._forward_hooks and not model._forward_pre_hooks
    assert not model._forward_hooks_always_called
    torch.testing.assert_close(model(tokens()), want, rtol=1e-4, atol=1e-5)
    again = sparsify_(model, ALL)
    assert names_of_merged(model) == Q_K_V and again.changed[0].merged


@pytest.mark.parametrize("way", ["deepcopy", "pickle", "file", "hf"])
def test_copies_and_files_keep_it(way, tmp_path, products):
    if way == "hf":
        model = merged(bert)
        model.save_pretrained(tmp_path)
        twin, x = type(model).from_pretrained(tmp_path).eval(), words()
    else:
        model, x = merged(), tokens()
        if way == "file":
            sparseloom.save(model, tmp_path / "m.safetensors")
            twin = Attention()
            sparseloom.load(tmp_path / "m.safetensors", twin, sparsify=True)
        else:
            twin = copy.deepcopy(model) if way == "deepcopy" else pickle.loads(pickle.dumps(model))
    assert names_of_merged(twin) == names_of_merged(model)
    assert {id(g) for g in siblings_in(twin)}.isdisjoint(map(id, siblings_in(model)))
    products.clear()
    got, want = (each(x) for each in (twin, model))
    got, want = (each if isinstance(each, torch.Tensor) else each[0] for each in (got, want))
    torch.testing.assert_close(got, want, rtol=0, atol=0)
    assert products and all(products)


def test_a_file_of_layers_that_multiply_alone_stays_so(tmp_path):
    model = merged(fuse=False)
    sparseloom.save(model, tmp_path / "m.safetensors")
    twin = Attention()
    sparseloom.load(tmp_path / "m.safetensors", twin, sparsify=True)
    assert not siblings_in(twin)


class Sources:
    """Methods of which the groups are known; see below."""

    def plain(self, x):
        return self.a(x) + self.b(x), self.c(x)

    def other(self, x, y):
        return self.d(x) + self.e(y)

    def maybe(self, x):
        return self.f(x) if self.g(x) else [self.h(x) for _ in x]

    def inside(self, x):
        for _ in range(2):
            x = self.i(x) + self.j(x)
        with self.lock:
            return self.k(x), self.l(x)

    def in_place(self, x):
        y = self.m(x)
        x.add_(1)
        return y + self.n(x)


def test_groups_of_a_class():
    names = set("abcdefghijklmn")
    assert called_alike(Sources, names) == [("a", "b", "c"), ("i", "j"), ("k", "l")]
    assert called_alike(torch.nn.Linear, names) == []
