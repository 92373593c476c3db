CREATE SCHEMA gpusage;
CREATE TABLE gpusage.version (version INTEGER NOT NULL);
INSERT INTO gpusage.version VALUES (2);
CREATE TABLE gpusage.decisions (id BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY, decided_at_s DOUBLE PRECISION NOT NULL, manager TEXT NOT NULL, mode TEXT NOT NULL, code TEXT NOT NULL, origin TEXT NOT NULL, model TEXT, before TEXT NOT NULL, after TEXT NOT NULL, record TEXT NOT NULL, number TEXT);
CREATE INDEX numbers ON gpusage.decisions (number);
