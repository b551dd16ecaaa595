import torch, torch.nn as nn
from opacus import PrivacyEngine
from torch.utils.data import DataLoader, TensorDataset

device = "cuda"
model = nn.Sequential(
    nn.Conv2d(1, 16, 8, 2, padding=3),
    nn.ReLU(),
    nn.MaxPool2d(2, 1),
    nn.Conv2d(16, 32, 4, 2),
    nn.ReLU(),
    nn.MaxPool2d(2, 1),
    nn.Flatten(),
    nn.Linear(32 * 4 * 4, 32),
    nn.ReLU(),
    nn.Linear(32, 10),
).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader = DataLoader(TensorDataset(torch.rand(2048, 1, 28, 28), torch.randint(0, 10, (2048,))), batch_size=256)
privacy_engine = PrivacyEngine()
model, optimizer, loader = privacy_engine.make_private(
    module=model, optimizer=optimizer, data_loader=loader, noise_multiplier=1.0, max_grad_norm=1.0
)
for epoch in range(40):
    for data, target in loader:
        data, target = data.to(device), target.to(device)
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(data), target)
        loss.backward()
        optimizer.step()
    print(epoch, loss.item(), privacy_engine.get_epsilon(1e-5))
