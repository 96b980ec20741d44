"""`seepage ui`: a page over a folder of runs, for one person at this machine."""
