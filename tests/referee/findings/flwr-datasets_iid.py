"""`IidPartitioner` deals out the examples in their order.

Its docs say "each partition sampled randomly from the dataset". It cuts contiguous shards
(partitioner/iid_partitioner.py:60). Partitions are IID only if the data set was shuffled before, as `FederatedDataset`
does by default.
"""

from datasets import Dataset
from flwr_datasets.partitioner import IidPartitioner

partitioner = IidPartitioner(num_partitions=2)
partitioner.dataset = Dataset.from_dict({"label": [0, 0, 0, 0, 1, 1, 1, 1]})
print("the labels of the two clients:", [list(partitioner.load_partition(i)["label"]) for i in range(2)])
