import torch
from fla.models import GLAConfig
from transformers import AutoModelForCausalLM
import fla

config = GLAConfig(hidden_size=512, num_hidden_layers=6, num_heads=4, vocab_size=32000)
model = AutoModelForCausalLM.from_config(config).to(torch.bfloat16).cuda()
opt = torch.optim.AdamW(model.parameters(), lr=3e-4)
for step in range(300):
    ids = torch.randint(0, 32000, (4, 2048), device="cuda")
    loss = model(input_ids=ids, labels=ids).loss
    loss.backward()
    opt.step()
    opt.zero_grad()
    print(step, loss.item())
