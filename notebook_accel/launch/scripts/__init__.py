"""From a script to its processes: who starts them, with which words and environment, how they end.

``way`` decides, and its answer is plain data: one line of words and an environment. Mostly the
command then becomes that program (exec): the script itself for one process, torch's elastic agent
for several machines and restarts, mpirun or deepspeed where they were chosen. Only several
processes on one machine stay children of the command: ``side_by_side`` watches them.
"""
