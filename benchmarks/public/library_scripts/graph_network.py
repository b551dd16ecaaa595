import torch, torch.nn.functional as F
from torch_geometric.datasets import FakeDataset
from torch_geometric.loader import DataLoader
from torch_geometric.nn import GINConv, MLP, global_add_pool

ds = FakeDataset(num_graphs=1024, avg_num_nodes=40, avg_degree=6, num_channels=32, num_classes=2)
loader = DataLoader(ds[:900], batch_size=128, shuffle=True)
device = torch.device("cuda")


class GIN(torch.nn.Module):
    def __init__(s, i, h, o, n):
        super().__init__()
        s.convs = torch.nn.ModuleList()
        for _ in range(n):
            s.convs.append(GINConv(MLP([i, h, h]), train_eps=False))
            i = h
        s.mlp = MLP([h, h, o], norm=None, dropout=0.5)

    def forward(s, x, edge_index, batch, batch_size):
        for c in s.convs:
            x = c(x, edge_index).relu()
        return s.mlp(global_add_pool(x, batch, batch_size))


model = GIN(ds.num_features, 64, ds.num_classes, 5).to(device)
opt = torch.optim.Adam(model.parameters(), lr=0.01)


def train():
    model.train()
    total = 0
    for data in loader:
        data = data.to(device)
        opt.zero_grad()
        out = model(data.x, data.edge_index, data.batch, data.batch_size)
        loss = F.cross_entropy(out, data.y)
        loss.backward()
        opt.step()
        total += float(loss) * data.num_graphs
    return total / len(loader.dataset)


for e in range(5):
    print(e, train())
