"""A Ray cluster of a head and another node, one core each, for tests: prints its address, then does what it reads:
`head` and `other` are killed, `more` is a new node.

    python tests/helpers/ray_nodes.py [GPUs that the other node says it has]
"""

import os
import sys
from typing import Any

from ray.cluster_utils import Cluster

HOW: dict[str, Any] = {"num_cpus": 1, "object_store_memory": 80 * 2**20, "include_dashboard": False}

cluster = Cluster(initialize_head=True, head_node_args=HOW)  # its files lie in RAY_TMPDIR
other = cluster.add_node(**HOW, num_gpus=float(sys.argv[1]) if sys.argv[1:] else None)
print(f"nodes: {cluster.address}", flush=True)
for line in sys.stdin:
    word = line.strip()
    if word == "more":
        cluster.add_node(**HOW)
    else:
        cluster.remove_node(cluster.head_node if word == "head" else other, allow_graceful=False)
    print(f"nodes: {word}", flush=True)
cluster.shutdown()
os._exit(0)
