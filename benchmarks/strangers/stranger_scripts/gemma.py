import torch
from transformers import Gemma2Config, Gemma2ForCausalLM
from tick import steps

cfg = Gemma2Config(
    vocab_size=64000,
    hidden_size=1024,
    intermediate_size=4096,
    num_hidden_layers=6,
    num_attention_heads=8,
    num_key_value_heads=4,
    head_dim=128,
    sliding_window=512,
    attn_implementation="eager",
)
m = Gemma2ForCausalLM(cfg).cuda().to(torch.bfloat16)
net = torch.compile(m, dynamic=False)
opt = torch.optim.Adafactor(m.parameters(), lr=1e-3)
for i in steps():
    ids = torch.randint(0, 64000, (2, 1024), device="cuda")
    loss = net(input_ids=ids, labels=ids, use_cache=False).loss
    loss.backward()
    torch.nn.utils.clip_grad_value_(m.parameters(), 1.0)
    opt.step()
    opt.zero_grad()
