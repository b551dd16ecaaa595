"""Whether attention drops some of its weights, by the rate that its call was given: settings hold no fractions."""

from __future__ import annotations

from torchledger.work.op_shapes import OpCall

_PLACES = {
    "_scaled_dot_product_flash_attention": 3,
    "_scaled_dot_product_flash_attention_backward": 10,
    "_scaled_dot_product_efficient_attention": 5,
    "_scaled_dot_product_efficient_attention_backward": 9,
    "_scaled_dot_product_cudnn_attention": 5,
    "_scaled_dot_product_cudnn_attention_backward": 13,
}
"""Where the rate stands among an operator's arguments."""


def drops_weights(call: OpCall) -> bool:
    """True for attention on a GPU with a rate of dropout above zero.

    >>> drops_weights(OpCall("aten::_scaled_dot_product_flash_attention", (None,) * 5, ("", "", "", "0.1", "True")))
    True
    """
    place = _PLACES.get(call.base_name)
    try:
        return place is not None and float(call.constant(place) or 0) > 0
    except ValueError:
        return False
