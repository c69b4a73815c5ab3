"""A build by workers that share nothing but OUT, a folder or a job_folder in a store."""
