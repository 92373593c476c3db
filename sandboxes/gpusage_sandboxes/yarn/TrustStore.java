// SPDX-License-Identifier: Apache-2.0
// Writes certificates of a PEM file to a key store, as Java wants them: java TrustStore.java FROM TO
import java.io.InputStream;
import java.io.OutputStream;
import java.nio.file.Files;
import java.nio.file.Path;
import java.security.KeyStore;
import java.security.cert.Certificate;
import java.security.cert.CertificateFactory;

class TrustStore {
    public static void main(String[] arguments) throws Exception {
        KeyStore store = KeyStore.getInstance("JKS");
        store.load(null, null);
        try (InputStream from = Files.newInputStream(Path.of(arguments[0]))) {
            for (Certificate certificate : CertificateFactory.getInstance("X.509").generateCertificates(from)) {
                store.setCertificateEntry("certificate-" + store.size(), certificate);
            }
        }
        try (OutputStream to = Files.newOutputStream(Path.of(arguments[1]))) {
            store.store(to, "changeit".toCharArray()); // Java's own password for what is public anyway
        }
    }
}
