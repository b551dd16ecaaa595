import torch, torch.nn as nn, torch.nn.functional as F
from tick import steps

torch.set_float32_matmul_precision("high")
T, BATCH, CLASSES, SIZE = 6, 48, 10, 48


class Spike(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, gamma):
        ctx.save_for_backward(x)
        ctx.gamma = gamma
        return (x > 0).float()

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        return grad_output * (1 / ctx.gamma) ** 2 * (ctx.gamma - x.abs()).clamp(min=0), None


class LIF(nn.Module):
    def __init__(self, thresh=1.0, tau=0.5, gamma=1.0):
        super().__init__()
        self.thresh, self.tau, self.gamma = thresh, tau, gamma

    def forward(self, x):
        mem = torch.zeros_like(x[:, 0])
        spikes = []
        for t in range(x.shape[1]):
            mem = mem * self.tau + x[:, t]
            spike = Spike.apply(mem - self.thresh, self.gamma)
            mem = (1 - spike) * mem
            spikes.append(spike)
        return torch.stack(spikes, dim=1)


class SeqToANN(nn.Module):
    def __init__(self, *layers):
        super().__init__()
        self.module = nn.Sequential(*layers)

    def forward(self, x):
        return self.module(x.flatten(0, 1)).unflatten(0, x.shape[:2])


class Layer(nn.Module):
    def __init__(self, cin, cout):
        super().__init__()
        self.fwd = SeqToANN(nn.Conv2d(cin, cout, 3, 1, 1), nn.BatchNorm2d(cout))
        self.act = LIF()

    def forward(self, x):
        return self.act(self.fwd(x))


class VGGSNN(nn.Module):
    def __init__(self):
        super().__init__()
        layers, cin = [], 2
        for c in (64, 128, "P", 256, 256, "P", 512, 512, "P", 512, 512, "P"):
            layers.append(SeqToANN(nn.AvgPool2d(2)) if c == "P" else Layer(cin, c))
            cin = cin if c == "P" else c
        self.features = nn.Sequential(*layers)
        self.classifier = SeqToANN(nn.Dropout(0.25), nn.Linear(512 * (SIZE // 16) ** 2, CLASSES))
        for m in self.modules():
            if isinstance(m, nn.Conv2d):
                nn.init.kaiming_normal_(m.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x):
        return self.classifier(self.features(x).flatten(2))


def tet_loss(outputs, labels, lamb=1e-3):
    loss = sum(F.cross_entropy(outputs[:, t], labels) for t in range(T)) / T
    return (1 - lamb) * loss + lamb * F.mse_loss(outputs, torch.ones_like(outputs))


model = VGGSNN().cuda()
compiled = torch.compile(model, mode="reduce-overhead")
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4, nesterov=True)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 300)
correct = 0
for i in steps():
    events = torch.poisson(torch.full((BATCH, T, 2, SIZE, SIZE), 0.3, device="cuda"))
    labels = torch.randint(0, CLASSES, (BATCH,), device="cuda")
    optimizer.zero_grad()
    outputs = compiled(events)
    loss = tet_loss(outputs, labels)
    loss.backward()
    optimizer.step()
    scheduler.step()
    correct += (outputs.mean(1).argmax(1) == labels).sum().item()
