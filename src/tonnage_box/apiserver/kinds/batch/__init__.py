"""batch: Jobs and CronJobs.

Called through its rows. Pure.
"""
