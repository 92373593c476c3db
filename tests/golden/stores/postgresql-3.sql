CREATE SCHEMA gpusage;
CREATE TABLE gpusage.version (version INTEGER NOT NULL);
INSERT INTO gpusage.version VALUES (3);
CREATE TABLE gpusage.decisions (id BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY, decided_at_s DOUBLE PRECISION NOT NULL, manager TEXT NOT NULL, mode TEXT NOT NULL, code TEXT NOT NULL, origin TEXT NOT NULL, model TEXT, before TEXT NOT NULL, after TEXT NOT NULL, record TEXT NOT NULL, number TEXT);
CREATE INDEX numbers ON gpusage.decisions (number);
CREATE TABLE gpusage.usage (id BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY, number TEXT NOT NULL, manager TEXT NOT NULL, job_id TEXT NOT NULL, owner TEXT NOT NULL, started_at_s DOUBLE PRECISION NOT NULL, ended_at_s DOUBLE PRECISION NOT NULL, outcome TEXT NOT NULL, record TEXT NOT NULL);
CREATE UNIQUE INDEX usage_runs ON gpusage.usage (manager, job_id, started_at_s, number);
CREATE INDEX usage_ends ON gpusage.usage (ended_at_s);
CREATE INDEX usage_numbers ON gpusage.usage (number);
