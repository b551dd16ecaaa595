"""What factorizations and solvers, transforms, distances and sparse tensors do (torch 2.11: ``BatchLinearAlgebra.cpp``,
``SpectralOps.cpp``)."""

from __future__ import annotations

import math

from torchledger.work.algorithm_calls import Call, Parts
from torchledger.work.element_sizes import element_size


def factored(call: Call) -> Parts:
    *batch, _, size = call.shapes[0]
    count = math.prod(batch)
    work = (count * size**3 / 1e6, count * size**2 * call.item_size / 1e6, count, count * size / 1e3, size**2 / 1e4)
    return Parts(_way_of_factor(call.name, count, size), (1, size, *work))


def _way_of_factor(name: str, count: int, size: int) -> str:
    """Whose kernels factor so many matrices, as torch chooses them: a single matrix by cuSOLVER, many small ones by
    cuBLAS or one block each, others by MAGMA or one after the other."""
    if count == 1:
        return "one"
    if name in _BY_EIGENVALUES:
        return "many small" if size <= _MOST_OF_A_WARP else "one after the other"
    if name in _BY_LU:
        is_by_block = size <= _SMALL_LU or (size <= _WIDE_LU and count <= _FEW_LU)
        return "many small" if is_by_block else "many"
    return "many"


_BY_EIGENVALUES = frozenset({"_linalg_eigh", "linalg_eig", "_linalg_svd"})


_BY_LU = frozenset({"linalg_lu_factor_ex", "linalg_inv_ex", "_linalg_slogdet", "_linalg_det", "_linalg_solve_ex"})


_MOST_OF_A_WARP, _SMALL_LU, _WIDE_LU, _FEW_LU = 32, 16, 128, 16
"""Sides of matrices, and their number, up to which kernels for many small ones are taken
(``BatchLinearAlgebra.cpp``, ``lu_factor``; ``BatchLinearAlgebraLib.cpp``)."""


def solved(call: Call) -> Parts:
    is_turned = call.name == "cholesky_solve"
    matrices, given = (call.shapes[1], call.shapes[0]) if is_turned else (call.shapes[0], call.shapes[-1])
    size = matrices[-1]
    columns = given[-1] if call.number("left", 1) else given[-2]
    count = max(math.prod(matrices[:-2]), math.prod(given[:-2]))
    way = "one" if count == 1 else "many"
    if call.name == "linalg_solve_triangular":
        way = "each" if count <= _FEW_TRIANGLES and size >= _LARGE_TRIANGLES else "together"
    elif call.name == "_linalg_solve_ex":
        way = _way_of_factor(call.name, count, size)
    way += ", one column" if columns == 1 else ""
    moved = count * size * (size + columns) * call.item_size / 1e6
    turns = count * size if way.startswith("each") else size
    work = (count * size**2 * columns / 1e6, moved, count, size**2 / 1e4, count * size * columns / 1e6)
    # Many factors are gone through by a kernel for about two of their columns in single precision, for six in double
    # (26 calls, of 4 to 531 kernels); if one column alone is solved for, by six in all.
    is_by_few = is_turned and count > 1 and columns > 1 and call.tensors[0].dtype == "float32"
    return Parts(way, (1, turns, *work, size if is_by_few else 0))


_FEW_TRIANGLES, _LARGE_TRIANGLES = 8, 64
"""Up to how many matrices, from which side on, are solved one after the other (``BatchLinearAlgebra.cpp``,
``triangular_solve_kernel``)."""


def of_sparse(call: Call) -> Parts:
    """What a sparse tensor holds, whatever its shape: values with the places of these, put in order and added up, taken
    from a dense tensor or added to it; in a product each value times a row of the other matrix."""
    held = next(each for each in call.tensors if each.is_sparse)
    is_product = call.name in _SPARSE_PRODUCTS
    width = element_size(held.dtype) or 4
    each_bytes = 2 * _PLACE_BYTES + width if is_product else _PLACE_BYTES + math.prod(held.shape[1:]) * width
    held_bytes = held.held_bytes or 0
    values = held_bytes / each_bytes
    dense = next((each.shape for each in reversed(call.tensors) if each.shape and not each.is_sparse), ())
    columns = dense[-1] if is_product and len(dense) > 1 else 0
    written = held.shape[0] * columns * width
    ordered = values / 1e6 if is_product or call.name in _BY_ORDER else 0.0
    return Parts("sparse", (1, held_bytes / 1e6, ordered, values * columns / 1e6, written / 1e6))


_BY_ORDER = frozenset({"_coalesce", "sparse_mask"})
"""What puts places in order, or looks them up in such an order; others take as long as the bytes that are held."""


_SPARSE_PRODUCTS, _PLACE_BYTES = frozenset({"mm", "_sparse_addmm", "addmm", "spmm", "_sparse_mm"}), 8


def distances(call: Call) -> Parts:
    one, other = call.shapes[1:3] if call.is_backward else call.shapes[:2]
    pairs = max(math.prod(one[:-2]), math.prod(other[:-2])) * one[-2] * other[-2]
    return Parts("pairs", (1, pairs * one[-1] / 1e9, pairs / 1e6, one[-1], one[-2] + other[-2]))


def transformed(call: Call) -> Parts:
    """Each dimension is a kernel's, or two's if it is long. Scaling is a kernel of its own, and so is what fills the
    half of a real transform that mirrors the other (``SpectralOps.cpp``)."""
    shape, dims = call.shapes[0], call.settings["dim"]
    lengths = [shape[dim] for dim in dims]
    if "last_dim_size" in call.settings:
        lengths[-1] = call.number("last_dim_size")
    largest = max(map(_largest_prime, lengths))
    way = "small factors" if largest <= _UNROLLED else "large factors" if largest <= _MOST_DIRECT else "by a longer one"
    way = "powers of two" if largest <= 2 else way
    long = sum(length > _IN_ONE_KERNEL for length in lengths)
    inner = len(dims) < len(shape) and max(dims) < len(shape) - 1
    passes = len(lengths) + long
    longer = 0.0 if way == "powers of two" else call.megabytes * long
    is_scaled = call.number("normalization", 0) != 0
    further = is_scaled + (1 - call.number("onesided", 1))
    direct = sum(map(_largest_prime, lengths)) if way == "large factors" else 0
    amounts = (passes, call.megabytes * (passes + is_scaled), longer, call.megabytes * inner)
    return Parts(way, (1, *amounts, further, math.prod(shape) * direct / 1e9))


_UNROLLED, _MOST_DIRECT = 13, 127
"""Prime factors that cuFFT has kernels of its own for, and beyond which it goes round by a transform of another length
(its documentation, "Accuracy and Performance")."""


_IN_ONE_KERNEL = 4096


def _largest_prime(number: int) -> int:
    largest, factor = 1, 2
    while factor * factor <= number:
        while number % factor == 0:
            number, largest = number // factor, factor
        factor += 1
    return max(largest, number)
