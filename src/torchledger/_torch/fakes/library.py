"""The C++ half of a device that is not there: guard, hooks, attention, recurrent layers, gradients of products.

Python cannot answer what torch's C++ asks of a device: its autograd engine wants streams,
``scaled_dot_product_attention`` a choice of kernels, convolutions the version of cuDNN, recurrent layers the way from
``lstm`` to cuDNN's operator, gradients of products which factors are zero. The library answers for a GPU
on which nothing ever runs. It is built once a torch with the host's compiler from torch's own headers and kept in a
folder of caches.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from torchledger._torch.program_settings import by_default
from torchledger.errors import PlanError
from torchledger.store.cache_folder import cache_folder

_SOURCE = r"""
#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/autocast_mode.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <ATen/native/RNN.h>
#include <ATen/native/transformers/attention.h>
#include <ATen/ops/cumprod_backward_native.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/core/impl/TorchDispatchModeTLS.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/generated/Functions.h>
#include <torch/csrc/distributed/c10d/reducer_timer.hpp>
#include <torch/library.h>

namespace {

constexpr auto kType = c10::DeviceType::CUDA;

bool counts_devices = false;
int device = 0;

struct Guard final : c10::impl::NoOpDeviceGuardImpl<c10::DeviceType::CUDA> {
  static c10::Device current() { return c10::Device(kType, device); }
  static c10::Stream stream() { return c10::Stream(c10::Stream::DEFAULT, current()); }
  c10::Device exchangeDevice(c10::Device) const override { return current(); }
  c10::Device getDevice() const override { return current(); }
  c10::Stream getStream(c10::Device) const noexcept override { return stream(); }
  c10::Stream getDefaultStream(c10::Device) const override { return stream(); }
  c10::Stream getNewStream(c10::Device, int) const override { return stream(); }
  c10::Stream getStreamFromGlobalPool(c10::Device, bool) const override { return stream(); }
  c10::Stream exchangeStream(c10::Stream) const noexcept override { return stream(); }
  // The engine starts a thread for each device that it finds the first time, and such a thread outlives Python.
  c10::DeviceIndex deviceCount() const noexcept override { return counts_devices ? device + 1 : 0; }
  void record(void**, const c10::Stream&, const c10::DeviceIndex, const c10::EventFlag) const override {}
  void block(void*, const c10::Stream&) const override {}
  bool queryEvent(void*) const override { return true; }
  void synchronizeEvent(void*) const override {}
  void synchronizeDevice(const c10::DeviceIndex) const override {}
  void recordDataPtrOnStream(const c10::DataPtr&, const c10::Stream&) const override {}
  double elapsedTime(void*, void*, const c10::DeviceIndex) const override { return 1.0; }
};

struct Hooks final : at::CUDAHooksInterface {
  void init() const override {}
  bool hasCUDA() const override { return true; }
  bool hasCuDNN() const override { return true; }
  bool hasCuBLASLt() const override { return true; }
  bool compiledWithCuDNN() const override { return true; }
  bool supportsDilatedConvolutionWithCuDNN() const override { return true; }
  bool supportsDepthwiseConvolutionWithCuDNN() const override { return true; }
  bool supportsBFloat16ConvolutionWithCuDNNv8() const override { return true; }
  bool supportsBFloat16RNNWithCuDNN() const override { return true; }
  long versionCuDNN() const override { return CUDNN; }
  long versionRuntimeCuDNN() const override { return CUDNN; }
  std::string showConfig() const override {
    const int version = CUDNN;
    return "  - CuDNN " + std::to_string(version / 10000) + "." + std::to_string(version / 100 % 100) + "\n";
  }
  int64_t cuFFTGetPlanCacheMaxSize(c10::DeviceIndex) const override { return 4096; }
  void cuFFTSetPlanCacheMaxSize(c10::DeviceIndex, int64_t) const override {}
  int64_t cuFFTGetPlanCacheSize(c10::DeviceIndex) const override { return 0; }
  void cuFFTClearPlanCache(c10::DeviceIndex) const override {}
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  c10::DeviceIndex deviceCount() const override { return device + 1; }
  c10::DeviceIndex getCurrentDevice() const override { return device; }
  c10::DeviceIndex current_device() const override { return device; }
  int getNumGPUs() const override { return device + 1; }
  void deviceSynchronize(c10::DeviceIndex) const override {}
  bool isPinnedPtr(const void*) const override { return true; }
  const at::Generator& getDefaultGenerator(c10::DeviceIndex) const override {
    return at::detail::getDefaultCPUGenerator();
  }
  at::Generator getNewGenerator(c10::DeviceIndex) const override { return at::detail::createCPUGenerator(); }
  double batchnormMinEpsilonCuDNN() const override { return 0.0; }
};

// What choosing a kernel of attention asks, in the order in which Python reads it.
struct Question {
  int64_t query[4], key[4], value[4], query_stride, key_stride, value_stride;
  int64_t mask[4], mask_stride, mask_rank, mask_requires_grad;
  int64_t rank, dtype_bytes, is_half, is_causal, has_dropout, requires_grad, enable_gqa;
};
using Choose = int64_t (*)(const Question*);
Choose choose_attention = nullptr;

// A symbol is not asked for its value, which would compile a graph for each length: it is a number that is large, and
// the same for symbols that are equal. Widths of heads are known, or asked for as torch does.
int64_t number_of(const c10::SymInt& size, int place, std::vector<c10::SymInt>& symbols) {
  if (auto known = size.maybe_as_int()) return *known;
  if (place == 3) return size.guard_int(__FILE__, __LINE__);
  size_t index = 0;
  while (index < symbols.size() && symbols[index] != size) ++index;
  if (index == symbols.size()) symbols.push_back(size);
  return (int64_t{1} << 40) + static_cast<int64_t>(index);
}

int64_t attention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                  const std::optional<at::Tensor>& mask, double dropout, bool is_causal, std::optional<double>,
                  bool enable_gqa) {
  Question asked{};
  std::vector<c10::SymInt> symbols;
  asked.rank = query.dim();
  if (query.dim() == 4 && key.dim() == 4 && value.dim() == 4) {
    for (int place = 0; place < 4; ++place) {
      asked.query[place] = number_of(query.sym_size(place), place, symbols);
      asked.key[place] = number_of(key.sym_size(place), place, symbols);
      asked.value[place] = number_of(value.sym_size(place), place, symbols);
    }
    asked.query_stride = query.sym_stride(3).guard_int(__FILE__, __LINE__);
    asked.key_stride = key.sym_stride(3).guard_int(__FILE__, __LINE__);
    asked.value_stride = value.sym_stride(3).guard_int(__FILE__, __LINE__);
  }
  asked.dtype_bytes = query.element_size();
  asked.is_half = query.scalar_type() == at::kHalf || query.scalar_type() == at::kBFloat16;
  if (mask.has_value() && mask->defined()) {
    asked.mask_rank = mask->dim();
    asked.mask_requires_grad = mask->requires_grad();
    // The last sizes stand last, whatever their number is.
    for (int64_t place = std::max<int64_t>(0, asked.mask_rank - 4); place < asked.mask_rank; ++place)
      asked.mask[4 - asked.mask_rank + place] = number_of(mask->sym_size(place), 0, symbols);
    if (asked.mask_rank) asked.mask_stride = number_of(mask->sym_stride(asked.mask_rank - 1), 0, symbols);
  }
  asked.is_causal = is_causal;
  asked.has_dropout = dropout > 0.0;
  asked.requires_grad = query.requires_grad() || key.requires_grad() || value.requires_grad();
  asked.enable_gqa = enable_gqa;
  return choose_attention(&asked);
}

// Recurrent layers, as aten/src/ATen/native/cudnn/RNN.cpp and ATen/cudnn/AutocastRNN.cpp have them, without what they
// ask of cuDNN. Autocast is to float16 whatever its dtype is, as it is there.
std::vector<at::Tensor> cast_each(at::TensorList tensors) {
  std::vector<at::Tensor> made;
  for (const auto& each : tensors)
    made.push_back(each.defined() && each.scalar_type() == at::kFloat ? each.to(at::kHalf) : each);
  return made;
}

at::Tensor flat_buffer(at::TensorList params, bool is_cast) {
  for (const auto& each : params)
    if (!is_cast && !each.is_alias_of(params[0])) return {};  // put into one at each call
  return params[0].detach();
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> recurrent(
    const at::Tensor& given, c10::SymIntArrayRef batch_sizes, at::TensorList given_hidden, at::TensorList given_params,
    bool has_biases, int64_t mode, int64_t layers, double dropout, bool train, bool bidirectional, bool batch_first) {
  bool casts = at::autocast::is_autocast_enabled(at::kCUDA);
  c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::DispatchKey::AutocastCUDA);
  std::vector<at::Tensor> first = {given}, hidden = given_hidden.vec(), params = given_params.vec();
  if (casts) first = cast_each(first), hidden = cast_each(hidden), params = cast_each(params);
  c10::SymInt hidden_size = hidden[0].sym_size(2), proj_size = 0;
  std::optional<at::Tensor> cell;
  if (hidden.size() > 1) {
    cell = hidden[1];
    if (cell->sym_size(2) != hidden_size) proj_size = hidden_size, hidden_size = cell->sym_size(2);
  }
  bool is_cast = casts && given_params[0].scalar_type() == at::kFloat;
  auto made = at::_cudnn_rnn_symint(
      first[0], params, (has_biases ? 4 : 2) + (proj_size != 0), flat_buffer(params, is_cast), hidden[0], cell, mode,
      hidden_size, proj_size, layers, batch_first, dropout, train, bidirectional, batch_sizes, std::nullopt);
  return {std::get<0>(made), std::get<1>(made), std::get<2>(made)};
}

std::vector<c10::SymInt> sizes_in(const at::Tensor& batch_sizes) {
  const int64_t* values = batch_sizes.const_data_ptr<int64_t>();
  return std::vector<c10::SymInt>(values, values + batch_sizes.numel());
}

enum Mode { RELU, TANH, LSTM, GRU };  // cudnnRNNMode_t

void lstm(at::Tensor& output, at::Tensor& hy, at::Tensor& cy, const at::Tensor& input, at::TensorList hidden,
          at::TensorList params, bool biases, int64_t layers, double dropout, bool train, bool both, bool batch_first) {
  std::tie(output, hy, cy) =
      recurrent(input, {}, hidden, params, biases, LSTM, layers, dropout, train, both, batch_first);
}
void lstm_packed(at::Tensor& output, at::Tensor& hy, at::Tensor& cy, const at::Tensor& data, const at::Tensor& sizes,
                 at::TensorList hidden, at::TensorList params, bool biases, int64_t layers, double dropout, bool train,
                 bool both) {
  std::tie(output, hy, cy) =
      recurrent(data, sizes_in(sizes), hidden, params, biases, LSTM, layers, dropout, train, both, false);
}
template <Mode mode>
void rnn(at::Tensor& output, at::Tensor& hy, const at::Tensor& input, const at::Tensor& hidden, at::TensorList params,
         bool biases, int64_t layers, double dropout, bool train, bool both, bool batch_first) {
  std::tie(output, hy, std::ignore) =
      recurrent(input, {}, hidden, params, biases, mode, layers, dropout, train, both, batch_first);
}
template <Mode mode>
void rnn_packed(at::Tensor& output, at::Tensor& hy, const at::Tensor& data, const at::Tensor& sizes,
                const at::Tensor& hidden, at::TensorList params, bool biases, int64_t layers, double dropout,
                bool train, bool both) {
  std::tie(output, hy, std::ignore) =
      recurrent(data, sizes_in(sizes), hidden, params, biases, mode, layers, dropout, train, both, false);
}

// Gradients of products. Torch's own formulas take a longer way as soon as they see a tensor without values, or a mode:
// these are what they do for plain tensors, none of which has a factor of zero (ReduceOps.cpp, FunctionsManual.cpp).
bool is_traced() {
  using c10::impl::TorchDispatchModeKey;
  using c10::impl::TorchDispatchModeTLS;
  return TorchDispatchModeTLS::get_mode(TorchDispatchModeKey::PROXY) ||
      TorchDispatchModeTLS::get_mode(TorchDispatchModeKey::FUNCTIONAL);
}

at::Tensor cumprod_backward(const at::Tensor& grad, const at::Tensor& input, int64_t dim, const at::Tensor& output) {
  if (is_traced() || input.sym_numel() <= 1 || input.sym_size(dim) == 1)
    return at::native::cumprod_backward(grad, input, dim, output);
  auto weighted = output.conj() * grad;
  (input == 0).any().item();
  return weighted.flip(dim).cumsum(dim).flip(dim).div_(input.conj());
}

using torch::autograd::variable_list;
using torch::autograd::generated::ProdBackward0;
using torch::autograd::generated::ProdBackward1;

// Shared as torch 2.11 has it, or counted by itself (2.13).
template <typename Node>
auto owner_of(Node* node) {
  if constexpr (requires { node->shared_from_this(); }) return node->shared_from_this();
  else return c10::intrusive_ptr<torch::autograd::Node>::reclaim_copy(node);
}

struct OfAll final : ProdBackward0 {
  variable_list apply(variable_list&& grads) override {
    auto input = self_.unpack();
    if (is_traced() || !grads[0].defined() || input.dim() == 0) return ProdBackward0::apply(std::move(grads));
    input = input.to(grads[0].scalar_type());
    (input == 0).nonzero();
    return {grads[0] * (result_.unpack(owner_of(this)) / input).conj()};
  }
};

struct OfRows final : ProdBackward1 {
  variable_list apply(variable_list&& grads) override {
    auto input = self_.unpack();
    if (is_traced() || !grads[0].defined() || input.dim() == 0) return ProdBackward1::apply(std::move(grads));
    auto grad = grads[0], result = result_.unpack(owner_of(this));
    auto place = dim < 0 ? dim + input.dim() : dim;
    input = input.to(grad.scalar_type());
    if (!keepdim) grad = grad.unsqueeze(place), result = result.unsqueeze(place);
    (input == 0).sum(place, true).sum().item();
    return {grad * (result / input).conj()};
  }
};

// An operator's kernel for autograd, which gives the node of its result another formula: what torch has made gets the
// table of functions of a node with the same fields.
template <typename Ours, typename Theirs>
struct WithFormula final : c10::OperatorKernel {
  static_assert(sizeof(Ours) == sizeof(Theirs));
  explicit WithFormula(c10::SafeKernelFunction made) : kernel(std::move(made)) {}
  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
    kernel.callBoxed(op, keys, stack);
    auto node = stack->back().toTensor().grad_fn();
    if (dynamic_cast<Theirs*>(node.get())) *reinterpret_cast<void**>(node.get()) = *reinterpret_cast<void**>(&ours);
  }
  c10::SafeKernelFunction kernel;
  Ours ours;
};

std::unique_ptr<torch::Library> formulas;

template <typename Ours, typename Theirs>
void give_formula(const char* name, const char* overload) {
  auto found = c10::Dispatcher::singleton().findSchemaOrThrow(name, overload);
  auto kernel = found.getComputedKernelForDispatchKey(c10::DispatchKey::AutogradCUDA);
  auto ours = std::make_unique<WithFormula<Ours, Theirs>>(std::move(kernel));
  auto full = std::string(name) + (*overload ? "." : "") + overload;
  formulas->impl(full.c_str(), torch::CppFunction::makeFromBoxedFunctor(std::move(ours)));
}

void give_formulas() {
  formulas = std::make_unique<torch::Library>(
      torch::Library::IMPL, "aten", c10::DispatchKey::AutogradCUDA, __FILE__, __LINE__);
  formulas->impl("cumprod_backward", &cumprod_backward);
  give_formula<OfAll, ProdBackward0>("aten::prod", "");
  give_formula<OfRows, ProdBackward1>("aten::prod", "dim_int");
}

void* hooks_before = nullptr;
const c10::impl::DeviceGuardImplInterface* guard_before = nullptr;

std::atomic<const c10::impl::DeviceGuardImplInterface*>& guard_of_cuda() {
  return c10::impl::device_guard_impl_registry[static_cast<size_t>(kType)];
}

// torch keeps its hooks in a constant that is made once; an object of ours lends it its table of functions.
void*& table_of(const at::CUDAHooksInterface& hooks) {
  return *reinterpret_cast<void**>(const_cast<at::CUDAHooksInterface*>(&hooks));
}

}  // namespace

extern "C" void install(Choose chosen) {
  static Hooks ours;
  static Guard guard;
  choose_attention = chosen;
  hooks_before = table_of(at::detail::getCUDAHooks());
  guard_before = guard_of_cuda().load();
  table_of(at::detail::getCUDAHooks()) = table_of(ours);
  guard_of_cuda().store(&guard);
  at::native::_fused_sdp_choice_stub.set_cuda_dispatch_ptr(&attention);
  at::native::lstm_cudnn_stub.set_cuda_dispatch_ptr(&lstm);
  at::native::lstm_packed_cudnn_stub.set_cuda_dispatch_ptr(&lstm_packed);
  at::native::gru_cudnn_stub.set_cuda_dispatch_ptr(&rnn<GRU>);
  at::native::gru_packed_cudnn_stub.set_cuda_dispatch_ptr(&rnn_packed<GRU>);
  at::native::rnn_tanh_cudnn_stub.set_cuda_dispatch_ptr(&rnn<TANH>);
  at::native::rnn_tanh_packed_cudnn_stub.set_cuda_dispatch_ptr(&rnn_packed<TANH>);
  at::native::rnn_relu_cudnn_stub.set_cuda_dispatch_ptr(&rnn<RELU>);
  at::native::rnn_relu_packed_cudnn_stub.set_cuda_dispatch_ptr(&rnn_packed<RELU>);
  give_formulas();
}
// A build for CUDA times DistributedDataParallel's reducer by events of the device; other builds have no such timer.
extern "C" void forget_timer() {
  static bool is_forgotten = false;
  if (!is_forgotten && c10d::TimerRegistry()->Has(kType)) {
    c10d::TimerRegistry()->Register(
        kType, [](c10::Device) { return std::unique_ptr<c10d::Timer>(); }, "none", c10::REGISTRY_PREFERRED);
  }
  is_forgotten = true;
}
extern "C" void count_devices(int index) {
  counts_devices = true;
  device = index;
}
extern "C" void uninstall() {
  counts_devices = false;
  formulas.reset();
  table_of(at::detail::getCUDAHooks()) = hooks_before;
  guard_of_cuda().store(guard_before);
}
"""

CUDNN_VERSION = 91900
"""What programs and torch's own rules are told: that of the CUDA builds of torch 2.11 and later."""

_FIELDS = (
    *(f"query_{place}" for place in range(4)),
    *(f"key_{place}" for place in range(4)),
    *(f"value_{place}" for place in range(4)),
    *("query_stride", "key_stride", "value_stride"),
    *(f"mask_{place}" for place in range(4)),
    *("mask_stride", "mask_rank", "mask_requires_grad"),
    *("rank", "dtype_bytes", "is_half", "is_causal", "has_dropout", "requires_grad", "enable_gqa"),
)


class AttentionQuestion(ctypes.Structure):
    """What a choice among kernels of attention depends on; flags are 0 or 1, the layout is that of the C++ struct.

    ``mask_rank`` is 0 without a mask; its last sizes stand last."""

    _fields_ = [(name, ctypes.c_int64) for name in _FIELDS]


_CHOOSE = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.POINTER(AttentionQuestion))


class FakeLibrary:
    """The built library, loaded into this process."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library
        self._chosen: Any = None

    def install(self, choose_attention: Callable[[AttentionQuestion], int], *, device: int) -> None:
        """Have torch's C++ take a CUDA device for present, until ``uninstall``; ``device`` is the current one."""
        self._chosen = _CHOOSE(lambda asked: choose_attention(asked.contents))
        self._library.install(self._chosen)
        if not torch.cuda.device_count():
            self._library.forget_timer()
        # The first backward of a process starts a thread for each device: none while none is counted.
        torch._C._set_multithreading_enabled(False)
        with by_default():
            torch.zeros((), requires_grad=True).clone().backward()
        self._library.count_devices(device)

    def uninstall(self) -> None:
        """Give torch its own answers back."""
        self._library.uninstall()
        torch._C._set_multithreading_enabled(True)


def load_library() -> FakeLibrary:
    """The library for this torch, built now if no earlier process has. Raises ``PlanError`` without a compiler."""
    key = hashlib.sha256("\n".join((_SOURCE, torch.__version__, str(CUDNN_VERSION), sys.platform)).encode())
    path = cache_folder() / f"fake_cuda_{key.hexdigest()[:16]}.so"
    if not path.exists():
        _build(path)
    return FakeLibrary(ctypes.CDLL(str(path)))


def _build(path: Path) -> None:
    compiler = os.environ.get("CXX") or shutil.which("g++") or shutil.which("clang++") or shutil.which("c++")
    if compiler is None:
        raise PlanError(
            "planning without the device builds a small library once, and there is no C++ compiler (g++ or clang++): "
            "install one, or name it in CXX."
        )
    root = Path(torch.__file__).parent
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        source, built = Path(folder) / "fake_cuda.cpp", Path(folder) / path.name
        source.write_text(_SOURCE.replace("CUDNN;", f"{CUDNN_VERSION};"))
        command = [compiler, "-std=c++20", "-O1", "-fPIC", "-shared", f"-I{root / 'include'}", str(source)]
        command += [f"-L{root / 'lib'}", "-lc10", "-ltorch_cpu", "-o", str(built)]
        command += [f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}"]
        outcome = subprocess.run(command, capture_output=True, text=True)
        if outcome.returncode:
            said = next((line for line in outcome.stderr.splitlines() if "error" in line), outcome.stderr[-300:])
            raise PlanError(f"the library that stands for the device could not be built for torch {torch.__version__}: "
                            f"{said.strip()}")  # fmt: skip
        with contextlib.suppress(FileExistsError):
            built.replace(path)
