import torch, torch.nn as nn
from transformers import Qwen2Config, Qwen2ForCausalLM, get_cosine_schedule_with_warmup
from tick import steps


class LoRA(nn.Module):
    def __init__(self, base, r=16, alpha=32):
        super().__init__()
        self.base = base
        self.A = nn.Parameter(torch.randn(r, base.in_features) * 0.01)
        self.B = nn.Parameter(torch.zeros(base.out_features, r))
        self.s = alpha / r
        self.drop = nn.Dropout(0.05)

    def forward(self, x):
        return self.base(x) + (self.drop(x).float() @ self.A.t() @ self.B.t()).to(x.dtype) * self.s


cfg = Qwen2Config(
    vocab_size=50000,
    hidden_size=1536,
    intermediate_size=6144,
    num_hidden_layers=6,
    num_attention_heads=12,
    num_key_value_heads=2,
)
model = Qwen2ForCausalLM(cfg).to(torch.bfloat16)
for p in model.parameters():
    p.requires_grad_(False)
for layer in model.model.layers:
    for n in ("q_proj", "v_proj", "o_proj"):
        setattr(layer.self_attn, n, LoRA(getattr(layer.self_attn, n)))
model.cuda().train()
model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
model.enable_input_require_grads()
trainable = [p for p in model.parameters() if p.requires_grad]
print(sum(p.numel() for p in trainable))
opt = torch.optim.AdamW(trainable, lr=2e-4)
sched = get_cosine_schedule_with_warmup(opt, 10, 1000)
cm = torch.compile(model)
for i in steps():
    ids = torch.randint(0, 50000, (4, 1024), device="cuda")
    out = cm(input_ids=ids, labels=ids)
    out.loss.backward()
    torch.nn.utils.clip_grad_norm_(trainable, 0.3)
    opt.step()
    sched.step()
    opt.zero_grad(set_to_none=True)
