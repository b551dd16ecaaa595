"""torch.export with a dynamic batch, AOTInductor package, loaded and served in a loop; uneven batches."""

import argparse, time, tempfile, os
import torch, torch.nn as nn

p = argparse.ArgumentParser()
p.add_argument("--d", type=int, default=256)
p.add_argument("--batch", type=int, default=64)
p.add_argument("--steps", type=int, default=15)
p.add_argument("--noaot", action="store_true")
a = p.parse_args()
dev = "cuda" if torch.cuda.is_available() else "cpu"
m = (
    nn.TransformerEncoder(
        nn.TransformerEncoderLayer(a.d, 4, 4 * a.d, 0.0, batch_first=True, norm_first=True),
        2,
        enable_nested_tensor=False,
    )
    .to(dev)
    .eval()
)
B = torch.export.Dim("B", min=2, max=4096)
with torch.no_grad():
    ep = torch.export.export(m, (torch.randn(a.batch, 16, a.d, device=dev),), dynamic_shapes=({0: B},))
    if a.noaot:
        f = torch.compile(ep.module())
    else:
        path = torch._inductor.aoti_compile_and_package(ep, package_path=os.path.join(tempfile.mkdtemp(), "m.pt2"))
        f = torch._inductor.aoti_load_package(path)
    for i in range(a.steps):
        x = torch.randn(a.batch, 16, a.d, device=dev)
        t = time.perf_counter()
        y = f(x)
        s = y.sum().item()
        print(f"step {i} {s:.3f} {1e3 * (time.perf_counter() - t):.2f} ms", flush=True)
