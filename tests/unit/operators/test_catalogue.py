"""The catalogue: names, parameters, and formulas that hold for scalars and arrays alike."""

from __future__ import annotations

import subprocess
import sys

import numpy
import pytest

from torchledger.errors import SampleError
from torchledger.operators import find_operator, load_operators, operator_names
from torchledger.work.element_sizes import ELEMENT_SIZES

SHAPE = {
    "mp": 2, "b": 2, "h": 4, "l": 64, "dim": 128, "experts": 4, "intermediate": 256, "top_k": 2, "encoders": 2,
    "m": 48, "k": 32, "n": 80, "rows": 30, "numel": 1000, "tokens": 50, "vocab": 100, "d": 32, "sequences": 3,
    "c_in": 16, "height": 12, "width": 10, "c_out": 8, "kernel": 3, "groups": 2,
}  # fmt: skip

GUIDE = """
embedding layernorm RMSlayernorm linear1 linear2 linear3 linear4 linear_final flash_atten gelu RoPE res_add
parallel_cross_entropy_128 softmax fillmask baddbmm bmm ScaledUpperTriangMaskedSoftmax moe
firstStage_optimizer middleStage_optimizer lastStage_optimizer
"""


def small(name: str) -> dict[str, int]:
    operator = find_operator(name)
    return {key: SHAPE[key] for key in operator.parameters}


def test_every_operator_of_the_guide_is_there():
    assert {f"guide.{name}" for name in GUIDE.split()} <= set(operator_names())


@pytest.mark.parametrize("name", operator_names())
def test_formulas_take_arrays_and_agree_with_scalars(name):
    operator = find_operator(name)
    one = small(name)
    many = {key: numpy.array([value, value]) for key, value in one.items()}
    for direction in operator.directions:
        assert numpy.all(operator.flops(many, direction) == operator.flops(one, direction))
        moved = operator.bytes_moved(one, direction, "bf16")
        assert moved > 0
        assert numpy.all(operator.bytes_moved(many, direction, "bf16") == moved)
    form = operator.general_form(one)
    if form is not None:
        assert find_operator(form[0]).resolve(form[1])


@pytest.mark.parametrize("name", operator_names())
def test_forward_reads_no_more_than_its_inputs_hold(name):
    operator = find_operator(name)
    p = operator.resolve(small(name))
    assert operator.check(p) is None
    kernels = operator.work(p, operator.directions[0], 2)
    if len(kernels) == 1 and kernels[0].kind in ("gemm", "attention", "convolution", "optimizer"):
        tensors = operator.tensors(p)
        held = sum(
            i.numel * (ELEMENT_SIZES[i.dtype] if i.dtype else 2)
            for key, i in tensors.items()
            if key not in ("into", "ends", "starts", "step")
        )
        assert kernels[0].bytes_read == held


def test_the_stage_optimizers_count_what_their_tensors_hold():
    for stage in ("firstStage", "middleStage", "lastStage"):
        operator = find_operator(f"{stage}_optimizer")
        p = operator.resolve(small(operator.key))
        held = sum(i.numel for key, i in operator.tensors(p).items() if key.startswith("parameter_"))
        assert operator.bytes_moved(p, "step", "fp32") == 7 * 4 * held
        assert operator.general_form(p)[1]["tensors"] == sum(key.startswith("mean_") for key in operator.tensors(p))


def test_causal_attention_counts_the_lower_triangle():
    sdpa = find_operator("sdpa")
    p = {"b": 1, "h": 1, "l": 7, "d": 16}
    pairs = sum(1 for i in range(7) for j in range(7) if j <= i)
    assert sdpa.flops({**p, "causal": 1}, "forward") == 4 * pairs * 16
    assert sdpa.flops({**p, "causal": 1, "l_kv": 3}, "forward") == 4 * 16 * sum(min(i, 3) for i in range(1, 8))


def test_a_bare_name_is_the_general_form_and_the_guide_has_its_own():
    assert find_operator("bmm").parameters == ("b", "m", "k", "n")
    assert find_operator("guide.bmm").parameters == ("mp", "b", "h", "l", "dim")
    assert find_operator("bmm", prefer_guide=True).key == "guide.bmm"


def test_an_unknown_operator_is_refused_with_its_neighbours():
    with pytest.raises(SampleError, match="unknown operator 'linaer'; did you mean linear"):
        find_operator("linaer")


def test_counting_needs_no_torch():
    code = (
        "import sys; from torchledger.operators import find_operator as f; "
        "f('linear').flops({'m': 1, 'k': 2, 'n': 3}, 'forward'); assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


USER_FILE = '''
from torchledger.operators import Input, Operator, Work
from torchledger.work.element_sizes import ELEMENT_SIZES
from torchledger.work.element_sizes import ELEMENT_SIZES

class Square(Operator):
    """x * x. Backward: the gradient of x."""
    name = "test_square"
    parameters = ("numel",)

    def tensors(self, p):
        return {"x": Input((p.numel,), gradient=True)}

    def forward(self, p, x):
        return x * x

    def work(self, p, direction, item_size):
        reads = 1 if direction == "forward" else 2
        return (Work("pointwise", reads * p.numel * item_size, p.numel * item_size),)
'''


def test_a_user_adds_an_operator_in_a_file(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(USER_FILE)
    assert load_operators(path) == ["test_square"]
    assert load_operators(path) == ["test_square"]
    assert find_operator("test_square").bytes_moved({"numel": 10}, "backward", "fp16") == 60


def test_a_user_file_may_not_take_a_name(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(USER_FILE.replace("test_square", "linear"))
    with pytest.raises(SampleError, match="'linear' exists already"):
        load_operators(path)


def test_a_broken_user_file_is_named(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text("1 / 0")
    with pytest.raises(SampleError, match=r"mine\.py failed to import: ZeroDivisionError"):
        load_operators(path)


def test_a_collective_is_a_question_with_numel_and_world():
    operator = find_operator("all_reduce")
    assert operator is find_operator("collective.all_reduce")
    assert operator.key == "collective.all_reduce" and operator.needs_peers
    assert operator.key not in operator_names()
    p = operator.resolve({"numel": 1000, "world": numpy.array([2, 4])})
    (work,) = operator.work(p, "forward", 2)
    assert work.bytes_read.tolist() == [2000.0, 3000.0]
    assert find_operator("all_gather").check(find_operator("all_gather").resolve({"numel": 7, "world": 2}))
