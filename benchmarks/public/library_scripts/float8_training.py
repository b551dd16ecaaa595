import torch
from torchao.float8 import convert_to_float8_training

m = (
    torch.nn.Sequential(
        *[x for _ in range(4) for x in (torch.nn.Linear(2048, 4096), torch.nn.GELU(), torch.nn.Linear(4096, 2048))]
    )
    .bfloat16()
    .cuda()
)
convert_to_float8_training(m)
m = torch.compile(m)
opt = torch.optim.AdamW(m.parameters(), lr=1e-3)
for i in range(300):
    x = torch.randn(4096, 2048, device="cuda", dtype=torch.bfloat16)
    loss = m(x).float().pow(2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    print(i, loss.item())
