import logging
import math

import torch
from torch.utils.data import DataLoader, Dataset
from transformers import GPTNeoXConfig, GPTNeoXForCausalLM

from tick import steps

logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
log = logging.getLogger("pythia")


class PackedTokens(Dataset):
    """Documents laid end to end and cut into pieces of one length."""

    def __init__(self, vocab, length, tokens=4_000_000):
        self.data = torch.randint(0, vocab, (tokens,))
        self.length = length

    def __len__(self):
        return len(self.data) // self.length

    def __getitem__(self, i):
        piece = self.data[i * self.length : (i + 1) * self.length]
        return {"input_ids": piece, "labels": piece}


class Lion(torch.optim.Optimizer):
    def __init__(self, params, lr=1e-4, betas=(0.9, 0.99), weight_decay=0.1):
        super().__init__(params, dict(lr=lr, betas=betas, weight_decay=weight_decay))

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            params = [p for p in group["params"] if p.grad is not None]
            grads = [p.grad for p in params]
            for p in params:
                if "exp_avg" not in self.state[p]:
                    self.state[p]["exp_avg"] = torch.zeros_like(p)
            momenta = [self.state[p]["exp_avg"] for p in params]
            beta1, beta2 = group["betas"]
            torch._foreach_mul_(params, 1 - group["lr"] * group["weight_decay"])
            updates = torch._foreach_mul(momenta, beta1)
            torch._foreach_add_(updates, grads, alpha=1 - beta1)
            torch._foreach_sign_(updates)
            torch._foreach_add_(params, updates, alpha=-group["lr"])
            torch._foreach_mul_(momenta, beta2)
            torch._foreach_add_(momenta, grads, alpha=1 - beta2)


def lr_lambda(step, warmup=1430, total=143000, floor=0.1):
    if step < warmup:
        return (step + 1) / warmup
    return floor + (1 - floor) * 0.5 * (1 + math.cos(math.pi * (step - warmup) / (total - warmup)))


def main():
    device = torch.device("cuda")
    config = GPTNeoXConfig(
        vocab_size=50304,
        hidden_size=1024,
        num_hidden_layers=24,
        num_attention_heads=16,
        intermediate_size=4096,
        max_position_embeddings=2048,
        use_parallel_residual=True,
        use_cache=False,
    )
    model = GPTNeoXForCausalLM(config).to(device)
    model.train()
    decay = [p for p in model.parameters() if p.ndim >= 2]
    rest = [p for p in model.parameters() if p.ndim < 2]
    optimizer = Lion([{"params": decay}, {"params": rest, "weight_decay": 0.0}], lr=1e-4)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lr_lambda)
    loader = DataLoader(
        PackedTokens(config.vocab_size, 1024), batch_size=8, shuffle=True, num_workers=0, pin_memory=True
    )
    batches = iter(loader)
    for step in steps():
        batch = {k: v.to(device, non_blocking=True) for k, v in next(batches).items()}
        with torch.autocast("cuda", dtype=torch.bfloat16):
            out = model(**batch)
        out.loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        if step % 10 == 0:
            log.info(
                "step %d loss %.3f grad %.2f lr %.2e",
                step,
                out.loss.item(),
                norm.item(),
                optimizer.param_groups[0]["lr"],
            )


if __name__ == "__main__":
    main()
