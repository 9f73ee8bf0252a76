"""A Ray cluster of a head and another node, one core each, for tests: prints its address, then kills what it reads."""

import os
import sys

from ray.cluster_utils import Cluster

HOW = {"num_cpus": 1, "object_store_memory": 80 * 2**20, "include_dashboard": False}

cluster = Cluster(initialize_head=True, head_node_args=HOW)  # its files lie in RAY_TMPDIR
other = cluster.add_node(**HOW)
print(f"nodes: {cluster.address}", flush=True)
for line in sys.stdin:
    node = cluster.head_node if line.strip() == "head" else other
    cluster.remove_node(node, allow_graceful=False)
    print(f"nodes: {line.strip()}", flush=True)
cluster.shutdown()
os._exit(0)
