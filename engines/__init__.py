"""Engines that run a job elsewhere: what is noted of a job, whether it still runs, what it says, and how it is ended;
by the engines' own interfaces, without Beam.
"""
