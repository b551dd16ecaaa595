"""The records that flow through torchledger.

Every record is a frozen dataclass of plain values (numbers, text, tuples, other records), so that it can be compared,
stored and read back as an equal. This room imports the standard library alone.

Unknown is ``None``, never 0. Sizes are in bytes, counts in units, one multiply-add is 2 FLOPs.
"""

from torchledger.nouns.balance import Account, BalanceSheet, Difference, EagerCount, Gap
from torchledger.nouns.breakdown import (
    Breakdown,
    Cost,
    DeviceEvent,
    IdleGap,
    LaunchOverhead,
    Profile,
    TimeCategory,
    Timeline,
    TimeRow,
)
from torchledger.nouns.compilation import Compilation
from torchledger.nouns.device import Ceilings, Device, Environment, Host
from torchledger.nouns.dry_run import CUDA_GRAPH, DryRun, MadeGroup, StandIn, WorldSpec
from torchledger.nouns.fabric import CollectiveCurve, CollectivePrice, Fabric, NodeLinks, Placement
from torchledger.nouns.job import (
    Collective,
    CollectiveMatch,
    CollectiveOperation,
    Contention,
    Job,
    RankActivity,
    RankSummary,
    Straggler,
)
from torchledger.nouns.launch import (
    Access,
    Buffer,
    Category,
    Direction,
    FlopReference,
    Graph,
    Kernel,
    Launch,
    LoopNest,
    Quality,
    SourceLine,
)
from torchledger.nouns.measurement import Clock, Measurement
from torchledger.nouns.memory import (
    LiveStorage,
    MemoryCategory,
    MemoryChange,
    MemoryCounter,
    MemoryRow,
    StepMemory,
)
from torchledger.nouns.plan import Layout, PlannedRank, PlannedStep, PricedLayout
from torchledger.nouns.prediction import PredictedCalls, Prediction, StepPrediction
from torchledger.nouns.run import Run
from torchledger.nouns.run_diff import (
    DiffSide,
    EagerChange,
    EagerSide,
    LaunchGroup,
    ReadChange,
    RunDiff,
    SettingChange,
)
from torchledger.nouns.sample import Sample
from torchledger.nouns.stage import Stage, StageName
from torchledger.nouns.step import (
    CallKind,
    OptimizerFacts,
    Phase,
    Step,
    StepCall,
    StepFoundBy,
    StepKind,
    TensorArgument,
)
from torchledger.nouns.value_stats import (
    ValueCall,
    ValueComparison,
    ValueFinding,
    ValueStats,
    ValueTable,
    WatchedGraph,
)

__all__ = [
    "CUDA_GRAPH",
    "Access",
    "Account",
    "BalanceSheet",
    "Breakdown",
    "Buffer",
    "CallKind",
    "Category",
    "Ceilings",
    "Clock",
    "Collective",
    "CollectiveCurve",
    "CollectiveMatch",
    "CollectiveOperation",
    "CollectivePrice",
    "Compilation",
    "Contention",
    "Cost",
    "Device",
    "DeviceEvent",
    "DiffSide",
    "Difference",
    "Direction",
    "DryRun",
    "EagerChange",
    "EagerCount",
    "EagerSide",
    "Environment",
    "Fabric",
    "FlopReference",
    "Gap",
    "Graph",
    "Host",
    "IdleGap",
    "Job",
    "Kernel",
    "Launch",
    "LaunchGroup",
    "LaunchOverhead",
    "Layout",
    "LiveStorage",
    "LoopNest",
    "MadeGroup",
    "Measurement",
    "MemoryCategory",
    "MemoryChange",
    "MemoryCounter",
    "MemoryRow",
    "NodeLinks",
    "OptimizerFacts",
    "Phase",
    "Placement",
    "PlannedRank",
    "PlannedStep",
    "PredictedCalls",
    "Prediction",
    "PricedLayout",
    "Profile",
    "Quality",
    "RankActivity",
    "RankSummary",
    "ReadChange",
    "Run",
    "RunDiff",
    "Sample",
    "SettingChange",
    "SourceLine",
    "Stage",
    "StageName",
    "StandIn",
    "Step",
    "StepCall",
    "StepFoundBy",
    "StepKind",
    "StepMemory",
    "StepPrediction",
    "Straggler",
    "TensorArgument",
    "TimeCategory",
    "TimeRow",
    "Timeline",
    "ValueCall",
    "ValueComparison",
    "ValueFinding",
    "ValueStats",
    "ValueTable",
    "WatchedGraph",
    "WorldSpec",
]
