"""Where a sample is drawn and kept: data, the job, workers, the store."""
