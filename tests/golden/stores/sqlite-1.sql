PRAGMA user_version = 1;
BEGIN TRANSACTION;
CREATE TABLE decisions (
    id INTEGER PRIMARY KEY,
    decided_at_s REAL NOT NULL,
    manager TEXT NOT NULL,
    mode TEXT NOT NULL,
    code TEXT NOT NULL,
    origin TEXT NOT NULL,
    model TEXT,
    before TEXT NOT NULL,
    after TEXT NOT NULL,
    record TEXT NOT NULL
);
INSERT INTO "decisions" VALUES(1,1700000000.5,'slurm','enforce','REWRITE','uid 1000','resnet50.onnx','gres/gpu:1','gres/mps:40','{"decided_at_s":1700000000.5,"manager":"slurm","origin":"uid 1000","mode":"enforce","decision":{"code":"REWRITE","request":{"gpu_count":1,"gpu_type":null,"mps_thread_percent":40,"memory_cap_bytes":null,"preferred_gpus":["v100"],"obstacles":[],"partitions":[]},"reasons":["one reason","another"],"plugin":"gpusage.policies.sharing","need":{"gpu":"v100-sxm2-16gb","step_time_s":{"value":0.5,"low":0.25,"high":0.75},"memory_bytes":{"value":0.5,"low":0.25,"high":0.75},"gpu_utilization":{"value":0.5,"low":0.25,"high":0.75},"sm_activity":{"value":0.5,"low":0.25,"high":0.75},"dram_activity":{"value":0.5,"low":0.25,"high":0.75},"throughput_samples_per_s":{"value":0.5,"low":0.25,"high":0.75},"fits":true,"familiar":true,"notes":["a note"]},"final":false},"rendered":{"before":"gres/gpu:1","after":"gres/mps:40","fields":{"set.gres":"mps:40"}},"model":"resnet50.onnx","workload":{"batch_size":64,"mode":"infer","precision":"fp32","optimizer":"momentum","shape":[["seq",[128]]],"steps":null,"slo":{"latency_s":0.05,"rate_per_s":null}}}');
COMMIT;
