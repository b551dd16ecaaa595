import torch
from transformers import GPT2Config, GPT2LMHeadModel
from tick import steps

torch.set_float32_matmul_precision("high")
cfg = GPT2Config(n_layer=8, n_positions=512, resid_pdrop=0.1, attn_pdrop=0.0)
model = GPT2LMHeadModel(cfg).cuda().train()
model.gradient_checkpointing_enable()
model = torch.compile(model)
decay = [p for p in model.parameters() if p.dim() >= 2]
rest = [p for p in model.parameters() if p.dim() < 2]
opt = torch.optim.AdamW(
    [{"params": decay, "weight_decay": 0.1}, {"params": rest, "weight_decay": 0.0}], lr=3e-4, fused=True
)
sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, 1000)
for i in steps():
    for micro in range(4):
        ids = torch.randint(0, cfg.vocab_size, (4, 512), device="cuda")
        with torch.autocast("cuda", torch.bfloat16):
            loss = model(input_ids=ids, labels=ids).loss / 4
        loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    opt.step()
    sched.step()
    opt.zero_grad(set_to_none=True)
