"""`fedlab-report`: one page, and its tables as CSV, of the runs in some folders, whether they are finished or not."""
