import torch
from transformers import BloomConfig, BloomForCausalLM

from tick import steps

VOCAB, HIDDEN, LAYERS, HEADS = 250880, 1024, 24, 16
MICRO_BATCH, LENGTH, ACCUMULATE = 2, 1024, 4


class Lion(torch.optim.Optimizer):
    def __init__(self, params, lr=1e-4, betas=(0.9, 0.99), weight_decay=0.0):
        super().__init__(params, dict(lr=lr, betas=betas, weight_decay=weight_decay))

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            lr, (b1, b2), wd = group["lr"], group["betas"], group["weight_decay"]
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                if not state:
                    state["exp_avg"] = torch.zeros_like(p)
                m = state["exp_avg"]
                p.mul_(1 - lr * wd)
                update = m.mul(b1).add_(p.grad, alpha=1 - b1).sign_()
                p.add_(update, alpha=-lr)
                m.mul_(b2).add_(p.grad, alpha=1 - b2)


config = BloomConfig(
    vocab_size=VOCAB,
    hidden_size=HIDDEN,
    n_layer=LAYERS,
    n_head=HEADS,
    hidden_dropout=0.0,
    attention_dropout=0.0,
    use_cache=False,
)
model = BloomForCausalLM(config).to(device="cuda", dtype=torch.bfloat16)
model.gradient_checkpointing_enable()
model.train()

decay = [p for p in model.parameters() if p.ndim >= 2]
plain = [p for p in model.parameters() if p.ndim < 2]
optimizer = Lion([{"params": decay, "weight_decay": 0.1}, {"params": plain}], lr=3e-5)
corpus = torch.randint(0, VOCAB, (512, LENGTH))

losses = []
for step in steps(count=8):
    total = torch.zeros((), device="cuda")
    for _ in range(ACCUMULATE):
        ids = corpus[torch.randint(0, len(corpus), (MICRO_BATCH,))].to("cuda")
        out = model(input_ids=ids, attention_mask=torch.ones_like(ids), labels=ids)
        (out.loss / ACCUMULATE).backward()
        total += out.loss.detach()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    losses.append(total.item() / ACCUMULATE)
