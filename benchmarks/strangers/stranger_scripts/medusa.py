import torch
import torch.nn as nn
import torch.nn.functional as F
from transformers import LlamaConfig, LlamaForCausalLM
from tick import steps

HEADS, VOCAB, HIDDEN = 4, 32000, 2048
BATCH, LENGTH, ACCUM = 2, 1024, 2
IGNORE = -100

config = LlamaConfig(
    vocab_size=VOCAB,
    hidden_size=HIDDEN,
    intermediate_size=5632,
    num_hidden_layers=16,
    num_attention_heads=32,
    num_key_value_heads=4,
    max_position_embeddings=2048,
    use_cache=False,
)
torch.set_default_dtype(torch.bfloat16)


class ResBlock(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.linear = nn.Linear(size, size)
        nn.init.zeros_(self.linear.weight)
        self.act = nn.SiLU()

    def forward(self, x):
        return x + self.act(self.linear(x))


with torch.device("cuda"):
    base = LlamaForCausalLM(config)
    heads = nn.ModuleList(nn.Sequential(ResBlock(HIDDEN), nn.Linear(HIDDEN, VOCAB, bias=False)) for _ in range(HEADS))
base.requires_grad_(False)
base.eval()
for head in heads:
    head[1].weight.data.copy_(base.lm_head.weight.data)

caught = {}
base.model.norm.register_forward_hook(lambda module, inputs, output: caught.update(hidden=output))


@torch.compile
def head_loss(head, hidden, labels):
    logits = head(hidden).float()
    loss = F.cross_entropy(logits.view(-1, VOCAB), labels.reshape(-1), ignore_index=IGNORE)
    valid = labels != IGNORE
    top1 = ((logits.argmax(-1) == labels) & valid).sum() / valid.sum()
    return loss, top1


optimizer = torch.optim.AdamW(heads.parameters(), lr=1e-3, betas=(0.9, 0.999), weight_decay=0.0)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=1000)
log = {}
for i in steps():
    total = 0.0
    for micro in range(ACCUM):
        ids = torch.randint(0, VOCAB, (BATCH, LENGTH), device="cuda")
        labels = ids.clone()
        labels[:, : LENGTH // 8] = IGNORE
        with torch.no_grad():
            base.model(input_ids=ids)
        hidden = caught["hidden"].detach()
        loss = 0.0
        for n, head in enumerate(heads):
            head_l, top1 = head_loss(head, hidden[:, : -(2 + n)], labels[:, 2 + n :])
            loss = loss + head_l * 0.8**n
            log[f"medusa{n}_top1"] = top1.detach()
        (loss / ACCUM).backward()
        total += loss.item() / ACCUM
    torch.nn.utils.clip_grad_norm_(heads.parameters(), 1.0)
    optimizer.step()
    scheduler.step()
    optimizer.zero_grad()
    log["loss"] = total
