#!/bin/sh
# Prints the MPS units of a whole GPU, from lines of nodes' Gres on its input; nothing where GPUs differ. A node that has
# no GPU, or shares none, does not count.
awk -F, '{
    gpus = shares = 0
    for (i = 1; i <= NF; i++) {
        split($i, words, "("); count = split(words[1], parts, ":")
        if (parts[1] == "gpu") gpus += parts[count]
        if (parts[1] == "mps") shares += parts[count]
    }
    if (gpus && shares) units[shares / gpus] = 1
} END { for (each in units) { kinds++; only = each }; if (kinds == 1) print only }'
