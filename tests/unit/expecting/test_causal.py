"""Whether a call of attention is causal, by arguments that generated code gives by place."""

from __future__ import annotations

import pytest

from factories import make_launch
from torchledger.expecting.launch_attention import is_causal


@pytest.mark.parametrize(
    ("operator", "arguments", "causal"),
    [
        ("_scaled_dot_product_cudnn_attention", ("None", "True"), False),
        ("_scaled_dot_product_cudnn_attention", ("None", "True", "0.0", "True"), True),
        ("_scaled_dot_product_cudnn_attention_backward", ("None", "None", "None", "512", "512", "0.0", "True"), True),
        ("_scaled_dot_product_flash_attention", ("0.0", "True"), True),
        ("_scaled_dot_product_flash_attention", ("0.0", "False"), False),
        ("_scaled_dot_product_efficient_attention_backward", ("0.0", "True", "True", "True", "False"), False),
        ("_scaled_dot_product_efficient_attention_backward", ("0.0", "True", "True", "True", "False", "True"), True),
    ],
)
def test_the_flag_is_found_behind_those_before_it(operator: str, arguments: tuple[str, ...], causal: bool) -> None:
    kwargs = {f"arg{place}": value for place, value in enumerate(arguments)}
    name = f"torch.ops.aten.{operator}.default"
    launch = make_launch(kernel_name=name, call=name, category="extern", aten_ops=(f"aten.{operator}",), kwargs=kwargs)
    assert is_causal(launch) is causal
