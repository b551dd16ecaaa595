import torch

torch.manual_seed(0)
torch.set_num_threads(2)
model = torch.nn.Sequential(torch.nn.Linear(64, 96), torch.nn.LayerNorm(96), torch.nn.GELU(), torch.nn.Linear(96, 32))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
step = torch.compile(lambda x: torch.softmax(model(x), -1).square().mean())
x = torch.randn(128, 64)
for _ in range(12):
    optimizer.zero_grad()
    step(x).backward()
    optimizer.step()
