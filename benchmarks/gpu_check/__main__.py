"""python -m benchmarks.gpu_check"""

from benchmarks.gpu_check.run import main

raise SystemExit(main())
