import torch, torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset
from ignite.engine import Events, create_supervised_trainer, create_supervised_evaluator
from ignite.metrics import Accuracy, Loss

device = "cuda"
train = DataLoader(
    TensorDataset(torch.rand(2048, 1, 28, 28), torch.randint(0, 10, (2048,))), batch_size=128, shuffle=True
)
val = DataLoader(TensorDataset(torch.rand(512, 1, 28, 28), torch.randint(0, 10, (512,))), batch_size=256)
model = nn.Sequential(
    nn.Conv2d(1, 32, 3),
    nn.ReLU(),
    nn.Conv2d(32, 64, 3),
    nn.ReLU(),
    nn.MaxPool2d(2),
    nn.Flatten(),
    nn.Linear(9216, 128),
    nn.ReLU(),
    nn.Linear(128, 10),
).to(device)
optimizer = torch.optim.RMSprop(model.parameters(), lr=0.005)
criterion = nn.CrossEntropyLoss()
trainer = create_supervised_trainer(model, optimizer, criterion, device)
evaluator = create_supervised_evaluator(model, metrics={"accuracy": Accuracy(), "loss": Loss(criterion)}, device=device)


@trainer.on(Events.ITERATION_COMPLETED(every=5))
def log(engine):
    print(f"Epoch[{engine.state.epoch}], Iter[{engine.state.iteration}] Loss: {engine.state.output:.2f}")


@trainer.on(Events.EPOCH_COMPLETED)
def evaluate(trainer):
    evaluator.run(val)
    print(evaluator.state.metrics)


trainer.run(train, max_epochs=30)
