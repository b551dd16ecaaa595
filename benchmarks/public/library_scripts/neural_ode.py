import torch, torch.nn as nn
from torchdiffeq import odeint_adjoint as odeint

device = torch.device("cuda:0")


class ODEFunc(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(2, 50), nn.Tanh(), nn.Linear(50, 2))

    def forward(self, t, y):
        return self.net(y**3)


func = ODEFunc().to(device)
optimizer = torch.optim.RMSprop(func.parameters(), lr=1e-3)
for itr in range(1, 300):
    optimizer.zero_grad()
    y0, t = torch.rand(20, 1, 2, device=device), torch.linspace(0.0, 1.0, 10, device=device)
    pred = odeint(func, y0, t, method="rk4")
    loss = torch.mean(torch.abs(pred - 1.0))
    loss.backward()
    optimizer.step()
    if itr % 10 == 0:
        print(itr, loss.item())
