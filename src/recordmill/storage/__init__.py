"""Files and folders on disks, in stores and in archives, without knowledge of records.

All other code opens files through this package only.
"""
