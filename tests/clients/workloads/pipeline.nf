process train {
    executor 'slurm'
    clusterOptions { "--gres=gpu:1 '--comment=model=$launchDir/$model'" }

    input: tuple val(name), val(model)
    output: path 'weights.txt'

    "python $launchDir/training.py $name > weights.txt"
}

process report {
    publishDir '.', mode: 'copy'

    input: path 'weights*.txt'
    output: path 'report.txt'

    'sort weights*.txt > report.txt'
}

workflow {
    Channel.of(['small', 'small.onnx,batch=8,mode=infer'], ['large', 'large.onnx,batch=52,mode=train,utilization=20'])
        | train | collect | report
}
