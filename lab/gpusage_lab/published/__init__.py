"""The public record: figures that vendors and authors published, held beside what gpusage predicts of the same run."""
