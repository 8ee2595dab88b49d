# Exercise: afford
def afford(job):
    """Layers ahead, and replicas of hot blocks, that fit into job.budget MiB."""
    return job.budget // job.layer - 1, 0
