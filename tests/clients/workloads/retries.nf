process train {
    executor 'slurm'
    clusterOptions { "--gres=gpu:1 '--comment=model=$launchDir/small.onnx,batch=8,mode=infer'" }
    errorStrategy 'retry'
    maxRetries 1

    input: val number
    output: path 'weights.txt'

    "python $launchDir/training.py large > weights.txt"
}

process report {
    publishDir '.', mode: 'copy'

    input: path 'weights*.txt'
    output: path 'report.txt'

    'cat weights*.txt > report.txt'
}

workflow { Channel.of(1..5) | train | collect | report }
