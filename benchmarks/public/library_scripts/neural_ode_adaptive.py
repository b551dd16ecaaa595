import torch, torch.nn as nn
from torchdiffeq import odeint

device = torch.device("cuda:0")
func_net = nn.Sequential(nn.Linear(2, 50), nn.Tanh(), nn.Linear(50, 2)).to(device)
optimizer = torch.optim.RMSprop(func_net.parameters(), lr=1e-3)
for itr in range(1, 300):
    optimizer.zero_grad()
    y0, t = torch.rand(20, 1, 2, device=device), torch.linspace(0.0, 1.0, 10, device=device)
    pred = odeint(lambda t, y: func_net(y**3), y0, t, method="dopri5")
    loss = torch.mean(torch.abs(pred - 1.0))
    loss.backward()
    optimizer.step()
    print(itr, loss.item())
