"""Deep ensemble with torch.func: N MLPs trained at once over stacked parameters."""

import argparse, copy, time
import torch, torch.nn as nn, torch.nn.functional as F
from torch.func import stack_module_state, functional_call, vmap, grad_and_value

p = argparse.ArgumentParser()
p.add_argument("--models", type=int, default=4)
p.add_argument("--batch", type=int, default=256)
p.add_argument("--width", type=int, default=256)
p.add_argument("--steps", type=int, default=14)
a = p.parse_args()
dev = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)


def net():
    return nn.Sequential(
        nn.Linear(32, a.width), nn.SiLU(), nn.Linear(a.width, a.width), nn.SiLU(), nn.Linear(a.width, 10)
    )


models = [net().to(dev) for _ in range(a.models)]
params, buffers = stack_module_state(models)
base = copy.deepcopy(models[0]).to("meta")


def loss_fn(p, b, x, y):
    return F.cross_entropy(functional_call(base, (p, b), (x,)), y)


@torch.compile
def train_step(params, mom, x, y):
    grads, losses = vmap(grad_and_value(loss_fn), in_dims=(0, 0, None, None))(params, buffers, x, y)
    new_p, new_m = {}, {}
    for k in params:
        m = 0.9 * mom[k] + grads[k]
        new_m[k] = m
        new_p[k] = params[k] - 0.05 * m
    return new_p, new_m, losses


params = {k: v.detach() for k, v in params.items()}
mom = {k: torch.zeros_like(v) for k, v in params.items()}
for i in range(a.steps):
    x = torch.randn(a.batch, 32, device=dev)
    y = torch.randint(0, 10, (a.batch,), device=dev)
    t = time.perf_counter()
    params, mom, losses = train_step(params, mom, x, y)
    print(f"step {i} loss {losses.mean().item():.4f} {1e3 * (time.perf_counter() - t):.2f} ms", flush=True)
